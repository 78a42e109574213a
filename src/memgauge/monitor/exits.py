"""What each process had held at most when it ended, as the kernel tells it (Linux, taskstats)."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from typing import NamedTuple

from memgauge.monitor.events import roomy

_GENERIC, _CONTROL, _REQUEST, _ACKNOWLEDGE, _ERROR = 16, 16, 1, 4, 2  # linux/netlink.h, linux/genetlink.h
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_GET, _OF_PID, _OF_CPUS = 1, 1, 3  # linux/taskstats.h
_HEADERS = 16 + 4  # struct nlmsghdr, struct genlmsghdr
_STATS_AT = _HEADERS + 4 + 8 + 4  # within an attribute, after one with the pid and its own head
# struct taskstats: version, ac_flag, ac_comm, ac_pid, hiwater_rss, ac_tgid, ac_tgetime
_STATS = struct.Struct("=H6xB71x32s16xI68xQ160xI4xQ")
_OLDEST = 12  # the first version that has ac_tgid and AGROUP (Linux 5.19)
_NO_EXEC, _LAST_THREAD = 0x01, 0x20  # AFORK, AGROUP, linux/acct.h


class Exit(NamedTuple):
    """One process at its end."""

    pid: int
    name: str
    highest_bytes: int  # VmHWM: of the program that it was last
    lived_us: int
    is_fork: bool  # it never became another program than its parent


class Exits:
    """Ends of processes of the whole system, each told before the process connector tells of it.

    A thread's end is told too, with the figures that all threads share; the last one's are the process's.

    Raises:
        OSError: It is not allowed (needs CAP_NET_ADMIN in the first namespaces), not built in
            (CONFIG_TASKSTATS, CONFIG_TASK_XACCT), or of a version that is laid out otherwise.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _GENERIC)
        try:
            roomy(self._socket)
            self._socket.bind((0, 0))
            self._socket.settimeout(0.2)
            family = _attribute(self._ask(_CONTROL, _GET_FAMILY, _FAMILY_NAME, b"TASKSTATS\0"), _FAMILY_ID)
            own = self._ask(family, _GET, _OF_PID, struct.pack("=I", os.getpid()))
            version, _, _, pid, highest, group, _ = _STATS.unpack_from(own, _STATS_AT)
            if version < _OLDEST or not pid == group == os.getpid() or highest == 0:
                raise OSError(errno.EPROTONOSUPPORT, f"version {version} of taskstats is unknown")
            with open("/sys/devices/system/cpu/possible", "rb") as cpus:
                self._ask(family, _GET, _OF_CPUS, cpus.read().strip() + b"\0", _ACKNOWLEDGE)
            self._socket.setblocking(False)
        except (OSError, struct.error) as error:
            self._socket.close()
            raise error if isinstance(error, OSError) else OSError(errno.EPROTO, str(error)) from error

    def _ask(self, family: int, command: int, kind: int, value: bytes, flags: int = 0) -> bytes:
        attribute = struct.pack("=HH", 4 + len(value), kind) + value
        attribute += bytes(-len(attribute) % 4)
        size = _HEADERS + len(attribute)
        head = struct.pack("=IHHIIBBH", size, family, _REQUEST | flags, 0, 0, command, 1, 0)
        self._socket.send(head + attribute)
        answer = self._socket.recv(4096)
        if struct.unpack_from("=H", answer, 4)[0] == _ERROR:
            code = -struct.unpack_from("=i", answer, 16)[0]
            if code:
                raise OSError(code, os.strerror(code))
        return answer

    def read(self) -> list[Exit]:
        """Return the ends that wait, in their order; where too many came at once some are missing."""
        found: list[Exit] = []
        while True:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            if len(data) < _STATS_AT + _STATS.size:
                continue  # the acknowledgement, if an end came before it
            _, flags, name, _, highest, pid, lived = _STATS.unpack_from(data, _STATS_AT)
            if flags & _LAST_THREAD:
                shown = name.split(b"\0", 1)[0].decode(errors="replace")
                found.append(Exit(pid, shown, highest * 1024, lived, bool(flags & _NO_EXEC)))

    def close(self) -> None:
        self._socket.close()


def _attribute(message: bytes, wanted: int) -> int:
    """Return the value of a number among the attributes of a message."""
    at = _HEADERS
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == wanted:
            return int.from_bytes(message[at + 4 : at + size], sys.byteorder)
        at += max(4, -(-size // 4) * 4)
    raise OSError(errno.EPROTO, "an answer lacks what was asked for")
