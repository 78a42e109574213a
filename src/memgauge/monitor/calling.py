"""A job's connection with a recording: where one listens, and the lines that are sent to it."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from json.encoder import encode_basestring_ascii as _quoted

ENVIRONMENT = "MEMGAUGE_RECORDING"
LONGEST_NAME = 1000  # characters; the rest is cut off, and said to be
_LOOK_EVERY_S = 1.0  # how often a process that nothing records looks again
_PENDING = 256 * 1024  # bytes that wait for a sampler that does not keep up; more is dropped and counted
_ANSWER_S = 0.5
_MOST_ANCESTORS = 16


def _addresses() -> Iterator[str]:
    """Yield where a recording may listen: the one that started this process, those attached to it or above."""
    yield from os.environ.get(ENVIRONMENT, "").split()
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        yield from attached_addresses(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if pid == 0:
            return


def attached_addresses(pid: int) -> list[str]:
    """Return the addresses of which a recording that was attached to a process takes the first that is free."""
    return [f"@memgauge/job/{pid}", f"@memgauge/job/{pid}/2"] if sys.platform == "linux" else []


def with_outer(address: str) -> str:
    """Return what `ENVIRONMENT` is set to: an address, before those of recordings around this one."""
    return " ".join([address, *os.environ.get(ENVIRONMENT, "").split()])


def socket_name(address: str) -> str:
    """Return what a socket binds to: `@name` is a name without a file (Linux), else it is a path."""
    return "\0" + address[1:] if address.startswith("@") else address


class Link:
    """A connection of this process with a sampler, made at the first mark.

    Attributes:
        socket: None as long as nothing is found that records.
        address: Where it listens.
        sampler: Its pid.
    """

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.address, self.sampler = "", 0
        self.pid = os.getpid()
        self._look_at = 0.0
        self._may_reset = False
        self._status = self._clear = self._group = -1
        self._pending = bytearray()
        self._lost = 0

    def find(self, links: Collection[Link]) -> bool:
        """Connect if a recording listens that none of `links` is connected with; looks no more than once a second."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        connected = [link for link in links if link.socket is not None]
        taken = {link.address for link in connected}
        for address in _addresses():
            if address and address not in taken and self._connect(address, {c.sampler for c in connected}):
                self.address = address
                return True
        return False

    def look_now(self) -> None:
        """Let the next `find` look, however soon it comes."""
        self._look_at = 0.0

    def _connect(self, address: str, samplers: Collection[int]) -> bool:
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | getattr(socket, "SOCK_CLOEXEC", 0))
        except (OSError, AttributeError):
            return False
        try:
            link.settimeout(_ANSWER_S)
            link.connect(socket_name(address))
            if not _is_trusted(link):
                raise OSError
            sampler = _other_end(link)
            if sampler in samplers:
                raise OSError  # it listens at two addresses
            link.sendall(b"%d\n" % self.pid)
            answer = link.recv(4096)  # "owner" or "reader", and the control group's peak that may be reset
        except OSError:
            link.close()
            return False
        link.setblocking(False)
        right, _, group = answer.partition(b" ")
        self._may_reset = right == b"owner"
        self._open_counters()
        self._open_group(group)
        self.socket, self.sampler = link, sampler
        return True

    def _open_counters(self) -> None:
        try:
            self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
            if self._may_reset:
                self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self._may_reset = False

    def _open_group(self, path: bytes) -> None:
        if not path:
            return
        try:
            self._group = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._group, b"0")
        except OSError:  # another user's, or a kernel before 6.12: the group's peak is the whole run's only
            self._close_group()

    def _close_group(self) -> None:
        if self._group >= 0:
            os.close(self._group)
        self._group = -1

    def send(self, kind: str, name: object, value: object, facts: str, span: int | None) -> None:
        """Send one line, of a mark or, with a number, of the boundary of a phase; never waits, never raises."""
        try:
            highest = group = "null"
            if span is not None and self._may_reset:
                data = os.pread(self._status, 2048, 0)
                at = data.find(b"VmHWM:")
                if at >= 0:
                    highest = str(int(data[at + 6 : data.index(b"kB", at)]) * 1024)
                os.write(self._clear, b"5")
            if span is not None and self._group >= 0:
                group = str(int(os.pread(self._group, 64, 0)))
                os.write(self._group, b"0")
            now = time.monotonic_ns()
            text = "null" if value is None else _quoted(_short(value))
            said = f"{_quoted(_short(name))},{text},{highest},{group},{facts},{self._lost}"
            line = f'[{now},"{kind}",{said},{"null" if span is None else span}]\n'
            self._put(line.encode("ascii"))
        except Exception:  # a recording must never be the reason that a job fails
            self.lose()

    def _put(self, line: bytes) -> None:
        assert self.socket is not None
        if not self._pending:
            try:
                sent = self.socket.send(line)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.lose()
                return
            if sent == len(line):
                return
            self._pending += line[sent:]
            return
        if len(self._pending) + len(line) > _PENDING:
            self._lost += 1
        else:
            self._pending += line
        try:
            del self._pending[: self.socket.send(self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self.lose()

    def finish(self) -> None:
        """At the end of the process: let what waits go out, but do not wait long."""
        if self.socket is None or not self._pending or os.getpid() != self.pid:
            return
        try:
            self.socket.settimeout(_ANSWER_S)
            self.socket.sendall(self._pending)
        except OSError:
            pass

    def lose(self) -> None:
        """Forget the connection; the sampler is gone."""
        for fd in (self._status, self._clear):
            if fd >= 0:
                os.close(fd)
        self._status = self._clear = -1
        self._close_group()
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self._pending.clear()

    def forked(self) -> None:
        """In a forked child: its own connection is made at its first mark."""
        self.lose()
        self.pid = os.getpid()
        self._look_at = 0.0
        self._lost = 0


def _is_trusted(link: socket.socket) -> bool:
    """Return whether the other end belongs to the same user or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("iii", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (0, os.getuid(), os.geteuid())


def _other_end(link: socket.socket) -> int:
    """Return the pid of the sampler; where the system does not tell, another number for each connection."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -link.fileno()
    return int(struct.unpack("iii", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _short(text: object) -> str:
    full = text if isinstance(text, str) else str(text)
    return full if len(full) <= LONGEST_NAME else f"{full[:LONGEST_NAME]}… ({len(full)} characters)"
