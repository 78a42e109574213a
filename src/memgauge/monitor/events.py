"""Forks, execs and exits of the whole system, as the kernel tells them (Linux, process connector)."""

from __future__ import annotations

import errno
import os
import socket
import struct

FORK, EXEC, EXIT = 1, 2, 0x80000000
FIRST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO: only here the numbers that the kernel tells are ours
_NETLINK_CONNECTOR, _CN_IDX_PROC, _CN_VAL_PROC, _LISTEN = 11, 1, 1, 1
_HEADERS = 16 + 20  # struct nlmsghdr, struct cn_msg
_EVENT = struct.Struct("=IIQIIII")  # what, cpu, timestamp_ns, and the first four numbers of the event
_BUFFER, _BUFFER_FORCE = 4 * 2**20, 33  # SO_RCVBUFFORCE, asm-generic/socket.h


class Events:
    """Forks, execs and exits of the whole system, from the kernel (linux/cn_proc.h).

    Raises:
        OSError: It is not allowed (needs CAP_NET_ADMIN in the first namespaces), or not built in.
    """

    def __init__(self) -> None:
        # In other namespaces the kernel ignores us, but what it tells another listener would be heard as its answer.
        if os.readlink("/proc/self/ns/pid") != FIRST_PIDS:
            raise OSError(errno.EPERM, "told in the first namespace of processes only")
        self.socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
        )
        try:
            roomy(self.socket)
            self.socket.bind((0, _CN_IDX_PROC))
            payload = struct.pack("=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0, _LISTEN)
            self.socket.send(struct.pack("=IHHII", 16 + len(payload), 3, 0, 0, os.getpid()) + payload)
            self.socket.settimeout(0.2)
            self.socket.recv(4096)  # the kernel acknowledges; silence means another namespace
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()
            raise

    def read(self) -> tuple[list[tuple[int, int, int, int]], bool]:
        """Return (what, pid, parent or exit status, monotonic ns) of what waits, and whether nothing was lost."""
        found: list[tuple[int, int, int, int]] = []
        complete = True
        while len(found) < 20_000:
            try:
                data = self.socket.recv(4096)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                complete = False
                continue
            if len(data) < _HEADERS + _EVENT.size:
                continue
            what, _, at_ns, a, b, c, d = _EVENT.unpack_from(data, _HEADERS)
            if what == FORK and c == d:  # child pid == child tgid: a process, not a thread
                found.append((FORK, d, b, at_ns))
            elif (what == EXEC and a == b) or (what == EXIT and a == b):
                found.append((what, b, c, at_ns))
        return found, complete

    def close(self) -> None:
        self.socket.close()


def roomy(link: socket.socket) -> None:
    """Give a socket room for what comes while nobody reads: more than anybody may take, where that is allowed."""
    try:
        link.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, _BUFFER)
    except OSError:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
