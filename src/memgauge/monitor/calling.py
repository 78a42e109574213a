"""A job's connection with a recording: where one listens, and the lines that are sent to it."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from json.encoder import encode_basestring_ascii as _quoted

from memgauge.monitor.held import Held
from memgauge.monitor.own_peaks import OwnPeaks

ENVIRONMENT = "MEMGAUGE_RECORDING"
LONGEST_NAME = 1000  # characters; the rest is cut off, and said to be
_LOOK_EVERY_S = 1.0  # how often a process that nothing records looks again
_PENDING = 1024 * 1024  # bytes that wait for a sampler that does not keep up; more is dropped and counted
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
    """A connection of this process with a sampler, made at the first mark. One thread at a time may use it.

    Attributes:
        socket: None as long as nothing is found that records.
        address: Where it listens.
        sampler: Its pid.
        is_looking: Whether a thread is about to connect it.
    """

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.address, self.sampler = "", 0
        self._held: Held | None = None  # the socket's descriptor
        self.pid = os.getpid()
        self.is_looking = False
        self._look_at = 0.0
        self._also: dict[str, int] = {}  # sampler that was found at an address, though connected at another
        self._peaks = OwnPeaks(False, "")
        self._is_sending = False
        self._pending = bytearray()
        self._lost = 0

    def is_open(self) -> bool:
        """Return whether it is connected; what the program has closed or put something else in the place of, is lost."""
        if self.socket is None or self._held is None:
            return False
        if self._held.is_ours():
            return True
        self.lose()
        self.look_now()
        return False

    def find(self, links: Collection[Link]) -> bool:
        """Connect if a recording listens that none of `links` is connected with; looks no more than once a second."""
        now = time.monotonic()
        if now < self._look_at or any(link.is_looking for link in links):  # a signal's handler within a look
            return False
        self._look_at = now + _LOOK_EVERY_S
        self.is_looking = True
        try:
            return self._look(links)
        finally:
            self.is_looking = False

    def _look(self, links: Collection[Link]) -> bool:
        connected = [link for link in links if link.socket is not None]
        samplers = {link.sampler for link in connected}
        taken = {link.address for link in connected}
        taken |= {address for address, sampler in self._also.items() if sampler in samplers}
        for address in _addresses():
            if address and address not in taken and self._connect(address, samplers):
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
                self._also[address] = sampler
                raise OSError  # it listens at two addresses
            link.sendall(b"%d\n" % self.pid)
            answer = link.recv(4096)  # "owner" or "reader", and the control group's peak that may be reset
        except OSError:
            link.close()
            return False
        link.setblocking(False)
        right, _, group = os.fsdecode(answer).partition(" ")
        try:
            self._peaks = OwnPeaks(right == "owner", group)
        except (ImportError, OSError):  # a Python without ctypes, or a kernel that does not let us
            self._peaks = OwnPeaks(False, "")
        if sampler != self.sampler:
            self._lost = 0  # what another recording missed is not this one's
        self.socket, self.sampler, self._held = link, sampler, Held(link.fileno())
        return True

    def send(self, kind: str, texts: str, facts: str, span: int | None) -> None:
        """Send one line, of a mark or, with a number, of the boundary of a phase; never waits, never raises.

        Args:
            kind: mark, begin or end.
            texts: Name and value, as `quoted` gives them.
            facts: What a framework's allocator holds, as JSON.
            span: Tells phases of one name apart.
        """
        if self.socket is None or self._is_sending:  # a signal's handler speaks in the midst of a line
            self._lost += 1
            return
        self._is_sending = True
        try:
            highest, group = (None, None) if span is None else self._peaks.take()
            now = time.monotonic_ns()
            said = f"{texts},{_number(highest)},{_number(group)},{facts},{self._lost},{_number(span)}"
            self._put(f'[{now},"{kind}",{said}]\n'.encode("ascii"))
        except OSError:
            self.lose()
        except Exception:  # a recording must never be the reason that a job fails
            self._lost += 1
        finally:
            self._is_sending = False

    def _put(self, line: bytes) -> None:
        assert self.socket is not None
        if not self._pending:
            line = line[self._sent(line) :]
        if not line:
            return
        if len(self._pending) + len(line) > _PENDING:
            self._lost += 1
        else:
            self._pending += line
        del self._pending[: self._sent(self._pending)]

    def _sent(self, data: bytes | bytearray) -> int:
        assert self.socket is not None
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def finish(self) -> None:
        """At the end of the process: let what waits go out as long as it is taken, and say what was dropped."""
        if os.getpid() != self.pid or not (self._pending or self._lost) or not self.is_open():
            return
        assert self.socket is not None
        if self._lost:
            self._pending += b'[0,"lost","",null,null,null,{},%d,null]\n' % self._lost
        try:
            self.socket.settimeout(_ANSWER_S)
            while self._pending:
                del self._pending[: self.socket.send(self._pending)]
        except OSError:
            return

    def lose(self) -> None:
        """Forget the connection; the sampler is gone."""
        self._peaks.close()
        if self.socket is not None and self._held is not None:
            self.socket.detach()
            self._held.close()
        self.socket = self._held = None
        self._lost += self._pending.count(b"\n")
        self._pending = bytearray()

    def forked(self) -> None:
        """In a forked child: its own connection is made at its first mark."""
        self.lose()
        self.pid = os.getpid()
        self._look_at = 0.0
        self._lost = 0
        self._is_sending = self.is_looking = False


def quoted(name: object, value: object) -> str:
    """Return name and value as JSON, with a comma between; what cannot be put into words is named by its type.

    A name that is blank stands in quotes, so that something is to be seen of it.
    """
    named = _short(name)
    if not named.strip():
        named = repr(named)
    return f"{_quoted(named)},{'null' if value is None else _quoted(_short(value))}"


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


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


def _short(said: object) -> str:
    try:
        full = said if isinstance(said, str) else str(said)
    except Exception as error:
        full = f"<{type(said).__name__}: {type(error).__name__} in str()>"
    return full if len(full) <= LONGEST_NAME else f"{full[:LONGEST_NAME]}… ({len(full)} characters)"
