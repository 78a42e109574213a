"""What a job says of itself: `mark` and `phase`. They cost microseconds, and nothing when nothing records.

    memgauge.mark("epoch", 3)
    with memgauge.phase("validate"):
        ...

A recording is found by the environment variable that a recorded command gets, or, for a process
that was attached to and what it started, by that process's name; two recordings of one job both hear it.
Each boundary of a phase carries the kernel's highest resident
size of this process since the boundary before, exact and not sampled; it is then set back, if this
recording is the one that may (`peaks` belong to one recording at a time).
"""

from __future__ import annotations

import atexit
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as _quoted
from types import TracebackType
from typing import Any

ENVIRONMENT = "MEMGAUGE_RECORDING"
LONGEST_NAME = 1000  # characters; the rest is cut off, and said to be
_LOOK_EVERY_S = 1.0  # how often a process that nothing records looks again
_PENDING = 256 * 1024  # bytes that wait for a sampler that does not keep up; more is dropped and counted
_ANSWER_S = 0.5
_MOST_ANCESTORS = 16


def mark(name: str, value: object = None) -> None:
    """Say that something happened now: an epoch began, a batch was loaded, a loss was seen.

    Args:
        name: What happened; equal names are one kind of event.
        value: Which one, as text or number.
    """
    _send("mark", name, value)


class phase:
    """A span of the job, drawn as a band; its peak of this process is exact. Phases may be nested.

    Args:
        name: What the span is; spans of equal names are one phase in a report.
        value: Which one, as text or number.
        reset_torch: Reset torch's own peaks at the beginning, and TensorFlow's, so that those of this phase
            are exact. Not done by default: scripts log these numbers.
    """

    def __init__(self, name: str, value: object = None, *, reset_torch: bool = False) -> None:
        self._name, self._value, self._reset_torch = name, value, reset_torch

    def __enter__(self) -> phase:
        _send("begin", self._name, self._value, bounds=True, reset_torch=self._reset_torch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _send("end", self._name, self._value, bounds=True)


def is_recorded() -> bool:
    """Return whether a recording listens to this process."""
    return bool(_listening())


def look_again() -> None:
    """Look for a recording at the next mark, though none was there a moment ago."""
    for link in _links:
        link.lose()
        link.look_now()


def let_go() -> None:
    """Send what waits, and end the connections: a recording is about to end; one around it is found again."""
    for link in _links:
        link.finish()
        link.lose()
        link.look_now()


def _send(kind: str, name: object, value: object, *, bounds: bool = False, reset_torch: bool = False) -> None:
    listening = _listening()
    if not listening:
        return
    if reset_torch:
        _reset_frameworks()
    facts = _framework()
    for link in listening:
        link.send(kind, name, value, facts, bounds=bounds)


def _listening() -> list[_Link]:
    return [link for link in _links if link.socket is not None or link.find()]


class _Link:
    """A connection of this process with a sampler, made at the first mark."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.address, self.sampler = "", 0
        self.pid = os.getpid()
        self._look_at = 0.0
        self._may_reset = False
        self._status = self._clear = self._group = -1
        self._pending = bytearray()
        self._lost = 0

    def find(self) -> bool:
        """Connect if a recording listens; looks no more than once a second."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        taken = {link.address for link in _links if link.socket is not None}
        for address in _addresses():
            if address and address not in taken and self._connect(address):
                self.address = address
                return True
        return False

    def look_now(self) -> None:
        self._look_at = 0.0

    def _connect(self, address: str) -> bool:
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
            if any(other.socket is not None and other.sampler == sampler for other in _links):
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

    def send(self, kind: str, name: object, value: object, facts: str, *, bounds: bool = False) -> None:
        """Send one line; never waits, never raises."""
        try:
            highest = group = "null"
            if bounds and self._may_reset:
                data = os.pread(self._status, 2048, 0)
                at = data.find(b"VmHWM:")
                if at >= 0:
                    highest = str(int(data[at + 6 : data.index(b"kB", at)]) * 1024)
                os.write(self._clear, b"5")
            if bounds and self._group >= 0:
                group = str(int(os.pread(self._group, 64, 0)))
                os.write(self._group, b"0")
            now = time.monotonic_ns()
            text = "null" if value is None else _quoted(_short(value))
            line = f'[{now},"{kind}",{_quoted(_short(name))},{text},{highest},{group},{facts},{self._lost}]\n'
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


def _framework() -> str:
    """Return what the framework's allocator holds as JSON; a framework is never imported or started here."""
    facts = _torch()
    return _tensorflow() if facts == "null" else facts


def _torch() -> str:
    """Return the figures of torch's CUDA allocator, if torch uses CUDA already."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return "null"
    try:
        device = cuda.current_device()
        found = cuda.memory_stats_as_nested_dict(device)
        held, kept = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
        return (
            f'{{"device":{device},"allocated_bytes":{held["current"]},"allocated_peak_bytes":{held["peak"]},'
            f'"reserved_bytes":{kept["current"]},"reserved_peak_bytes":{kept["peak"]}}}'
        )
    except Exception:  # half-imported, or a build that differs
        return "null"


def _tensorflow() -> str:
    """Return the figures of TensorFlow's allocator, if it runs already.

    They are what tensors take, not what TensorFlow has reserved. On the CPU they are complete only with
    TF_CPU_ALLOCATOR_USE_BFC=1; without it they would count large blocks only, so they are left out.
    """
    place = _tensorflow_device()
    if place is None:
        return "null"
    try:
        found = sys.modules["tensorflow"].config.experimental.get_memory_info(place)
        return (
            f'{{"framework":"tensorflow","device":"{place}","allocated_bytes":{found["current"]},'
            f'"allocated_peak_bytes":{found["peak"]}}}'
        )
    except Exception:  # half-imported, or a device that keeps no account
        return "null"


_tensorflow_place: list[str | None] = []  # found once: its devices do not change while it runs


def _tensorflow_device() -> str | None:
    """Return the device whose allocator tells; None if there is none, or TensorFlow has not begun."""
    if _tensorflow_place:
        return _tensorflow_place[0]
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    begun = getattr(eager, "_context", None)
    if "tensorflow" not in sys.modules or not getattr(begun, "_initialized", False):
        return None
    try:
        devices = [d.device_type for d in sys.modules["tensorflow"].config.list_logical_devices()]
    except Exception:
        return None
    on_cpu = "CPU:0" if os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true") else None
    _tensorflow_place.append("GPU:0" if "GPU" in devices else on_cpu)
    return _tensorflow_place[0]


def _reset_frameworks() -> None:
    """Reset the peaks that torch and TensorFlow keep."""
    place = _tensorflow_device()
    if place is not None:
        sys.modules["tensorflow"].config.experimental.reset_memory_stats(place)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.reset_peak_memory_stats()


_links = (_Link(), _Link())  # as many recordings of one job hear it
for _each in _links:
    atexit.register(_each.finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_each.forked)
