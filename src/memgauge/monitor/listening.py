"""Where marks arrive: one connection for each process that says something."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from memgauge.monitor.calling import attached_addresses, socket_name

_LONGEST_LINE = 64 * 1024
_MOST = 1000  # lines that are taken in at one look, so that samples are not late


class Heard(NamedTuple):
    """One line that a process sent."""

    pid: int
    time_ns: int  # monotonic clock
    kind: str  # mark, begin or end
    name: str
    value: str | None
    highest_bytes: int | None  # VmHWM since the boundary before
    group_bytes: int | None  # the control group's peak since the boundary before
    facts: dict[str, Any]
    span: int | None  # the same at both boundaries of a phase


class Listener:
    """Takes connections at `address`, and at the attached processes' own names.

    Args:
        attached: Pid of a process that was not started by us, and so does not know our address.
        users: The user ids that may connect; of others only who is followed.
        refuse: Is told pid and user of who is turned away.
    """

    def __init__(
        self, attached: int | None, users: set[int], refuse: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if sys.platform == "linux":
            self.address = f"@memgauge/marks/{os.getpid()}-{secrets.token_hex(8)}"
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="memgauge-")
            self.address = os.path.join(self._folder.name, "marks")
        self._users, self._refuse = users, refuse
        self._rings = [_ring(self.address)]
        self.attached_is_taken = False
        if attached is not None:
            self.attached_is_taken = not self.attend(attached)
        self._links: dict[int, _Connection] = {}
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # to turn callers away with
        self.lost = 0  # marks that processes had to drop
        self.garbled = 0

    def attend(self, pid: int) -> bool:
        """Listen at the name of a process too; False if two others do.

        A command is told the address by its environment, which what it starts may be without.
        """
        places = attached_addresses(pid)
        for place in places:
            try:
                self._rings.append(_ring(place))
                return True
            except OSError:  # another recording of this process listens there
                continue
        return not places

    def doorbells(self) -> list[socket.socket]:
        """Return the sockets that become readable when somebody new calls."""
        return self._rings

    def is_used(self) -> bool:
        return bool(self._links)

    def accept(self, welcome: Callable[[int], str], follows: Callable[[int], bool] = lambda _: False) -> None:
        """Take those who call.

        Args:
            welcome: Returns what a process is told: whose its peaks are.
            follows: Whether a process is one of the job's, whoever it runs as.
        """
        for ring in self._rings:
            while True:
                try:
                    link, _ = ring.accept()
                except OSError as error:
                    if error.errno == errno.EMFILE and self._turn_away(ring):
                        continue
                    break
                connection = _Connection(link)
                pid, user = connection.pid, connection.user
                if pid is not None and user is not None and user not in self._users and not follows(pid):
                    link.close()
                    self._refuse(pid, user)
                    continue
                with contextlib.suppress(OSError):
                    link.settimeout(0.05)
                    hello = link.recv(32, 0)  # its pid, as it knows it; ours is the one that counts
                    if connection.pid is None:
                        connection.pid = int(hello.split(b"\n", 1)[0] or 0)
                    link.sendall(welcome(connection.pid).encode())
                    link.setblocking(False)
                    self._links[link.fileno()] = connection
                    continue
                link.close()

    def _turn_away(self, ring: socket.socket) -> bool:
        """Close the next caller's connection, if there is one: left to wait it would wake the sampler all the time."""
        os.close(self._spare)
        try:
            ring.accept()[0].close()
        except OSError:
            return False
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return True

    def drain(self) -> list[Heard]:
        """Return what arrived since the last call, in order of time."""
        heard: list[Heard] = []
        for number, connection in list(self._links.items()):
            is_open = connection.read()
            for line in connection.lines():
                made = self._understood(connection, line)
                if made is not None:
                    heard.append(made)
            if not is_open:
                connection.link.close()
                del self._links[number]
        return sorted(heard, key=lambda h: h.time_ns)

    def _understood(self, connection: _Connection, line: bytes) -> Heard | None:
        try:
            when, kind, name, value, highest, group, facts, lost, span = json.loads(line)
            if kind not in ("mark", "begin", "end", "lost") or not isinstance(name, str):
                raise ValueError
            self.lost += max(0, int(lost) - connection.lost)
            connection.lost = int(lost)
            if kind == "lost":  # the last word of a process of whose last marks some were dropped
                return None
            return Heard(
                connection.pid or 0,
                int(when),
                kind,
                name,
                None if value is None else str(value),
                None if highest is None else int(highest),
                None if group is None else int(group),
                facts if isinstance(facts, dict) else {},
                None if span is None else int(span),
            )
        except (ValueError, TypeError, RecursionError):
            self.garbled += 1
            return None

    def close(self) -> None:
        os.close(self._spare)
        for ring in self._rings:
            ring.close()
        for connection in self._links.values():
            connection.link.close()
        if self._folder is not None:
            self._folder.cleanup()


class _Connection:
    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.lost = 0
        self._buffer = b""
        self.pid: int | None = None
        self.user: int | None = None
        if hasattr(socket, "SO_PEERCRED"):
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.pid, self.user, _ = struct.unpack("iii", credentials)

    def read(self) -> bool:
        """Take in what waits; False once the other end is closed."""
        for _ in range(64):
            try:
                data = self.link.recv(65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._buffer += data
            if len(self._buffer) > _MOST * 1024:
                return True
        return True

    def lines(self) -> list[bytes]:
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest if len(rest) <= _LONGEST_LINE else b""
        return lines


def _ring(address: str) -> socket.socket:
    ring = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        ring.bind(socket_name(address))
        ring.listen(128)
        ring.setblocking(False)
    except OSError:
        ring.close()
        raise
    return ring


class PeakLock:
    """The right to reset the highest resident size of one process; one recording has it at a time.

    It is a socket's name: the system gives it to one holder, and takes it back when that one dies.

    Raises:
        OSError: Another recording has it, or the system has no such names.
    """

    def __init__(self, pid: int, started_ticks: int) -> None:
        if sys.platform != "linux":
            raise OSError("no such names on this system")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(f"\0memgauge/peak/{pid}-{started_ticks}")
        except OSError:
            self._socket.close()
            raise

    def release(self) -> None:
        self._socket.close()
