"""The recorded command: how it is started, how signals reach it, how it ended.

The command stays in the sampler's process group, so that the terminal sees one job: what the
terminal sends to the group (Ctrl-C, a closed window) reaches the command by itself, and what another
process sends to the sampler alone is passed on. The two are told apart by who sent the signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from memgauge.errors import UsageError

_PASSED_ON = tuple(
    getattr(signal, name)
    for name in "SIGINT SIGQUIT SIGTERM SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCONT SIGWINCH".split()
    if hasattr(signal, name)
)
_SENT_BY_KERNEL = 0x80  # si_code SI_KERNEL: the terminal sent it to the whole group (sigaction(2))
_SIGINFO = struct.Struct("=IiiI")  # number, errno, code, pid: the head of signalfd_siginfo
_SIGINFO_SIZE = 128
_PR_SET_CHILD_SUBREAPER = 36
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss, getrusage(2) of each system
# Between its last look at itself and exec. What the kernel's counters may lag behind is in it: 32 pages on each CPU, of
# anonymous, file and shared memory each (kernel, lib/percpu_counter.c): 768 KiB on two.
_LAUNCHER_GROWS = 2 * 2**20
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # what a shell ends with in these cases


class Ending(NamedTuple):
    """How a run or a process ended."""

    how: str  # exit, signal, gone, stopped
    code: int | None = None  # exit code
    signal: str | None = None
    out_of_memory: bool = False
    detail: str = ""

    def text(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        if self.how == "exit":
            return f"exit code {self.code}{detail}"
        if self.how == "signal":
            return f"killed by {self.signal}{detail}"
        return self.detail or self.how


def ending_of(status: int) -> Ending:
    """Return what a status of wait(2) means."""
    code = os.waitstatus_to_exitcode(status)
    return Ending("exit", code) if code >= 0 else Ending("signal", signal=signal_name(-code))


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Job(NamedTuple):
    """A command that was started."""

    pid: int
    launcher_bytes: int  # what the launched process may have held before it became the command


def adopt_orphans() -> bool:
    """Let processes whose parent dies come to us instead of to init, so that they are not lost."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def start(
    command: Sequence[str],
    environment: dict[str, str],
    signals: Signals,
    enter: Callable[[int], None] | None = None,
    closed: Sequence[int] = (),
) -> Job:
    """Start the command with the signal mask and dispositions that we were started with.

    Args:
        command: What to run, and its arguments.
        environment: Its environment.
        signals: Knows which it begins with blocked, and which ignored.
        enter: Is called with its pid, in the new process, before it becomes the command.
        closed: The standard streams that it begins without.

    Raises:
        UsageError: There is no such command, or it cannot be executed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these; a command expects them
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            for number in signals.ignored_before:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask_before)
            if enter is not None:
                with contextlib.suppress(OSError):
                    enter(os.getpid())
            os.write(writer, b"%d\n" % _own_highest())
            for number in closed:
                os.close(number)
            os.execvpe(command[0], list(command), environment)
        except OSError as error:
            os.write(writer, b"%d" % (error.errno or errno.EINVAL))
        finally:
            os._exit(NOT_FOUND)
    os.close(writer)
    said = b""
    while piece := os.read(reader, 256):
        said += piece
    os.close(reader)
    highest, _, failed = said.partition(b"\n")
    if failed:
        os.waitpid(pid, 0)
        raise _cannot(command[0], int(failed))
    return Job(pid, int(highest or 0) + _LAUNCHER_GROWS)


def refuse_missing(command: str) -> None:
    """Refuse a command that cannot be started, before anything is made for its recording.

    Raises:
        CommandError: There is no such command, or it may not be executed.
    """
    from shutil import which

    if which(command) is None:
        if os.path.exists(command) and os.path.dirname(command):
            raise _cannot(command, errno.EISDIR if os.path.isdir(command) else errno.EACCES)
        raise _cannot(command, errno.ENOENT)


def _cannot(command: str, number: int) -> CommandError:
    missing = number == errno.ENOENT
    what = "there is no such command" if missing else os.strerror(number)
    if missing and os.path.exists(command):
        what = "the interpreter in its first line does not exist"
    return CommandError(f"{command!r} cannot be started: {what}", NOT_FOUND if missing else NOT_EXECUTABLE)


class CommandError(UsageError):
    """The command could not be started; ends as a shell would."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


def _own_highest() -> int:
    try:
        with open("/proc/self/status", "rb") as file:
            data = file.read()
        at = data.index(b"VmHWM:") + 6
        return int(data[at : data.index(b"kB", at)]) * 1024
    except (OSError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES


class Arrived(NamedTuple):
    """A signal that somebody sent to us."""

    number: int
    is_from_terminal: bool

    def is_for_job(self) -> bool:
        """Return whether the command has not had it from the terminal itself.

        A terminal that is closed tells only the leader of its session, as a rule the shell.
        """
        if self.number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return True
        return not self.is_from_terminal


class Signals:
    """Signals as something to read. While it is open none of them interrupts the sampler."""

    def __init__(self) -> None:
        wanted = {*_PASSED_ON, signal.SIGCHLD}
        self.mask_before: set[Any] = set(signal.pthread_sigmask(signal.SIG_BLOCK, wanted))
        # One that is ignored arrives too while it is blocked (kernel/signal.c, `sig_ignored`): the command may heed it.
        self.ignored_before = {s for s in _PASSED_ON if signal.getsignal(s) is signal.SIG_IGN}
        self._wanted = wanted
        self.fd = _signalfd(wanted)
        self._has_info = self.fd >= 0
        if not self._has_info:
            self._begin_without_info()

    def _begin_without_info(self) -> None:
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in self._wanted:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)

    def read(self) -> list[Arrived]:
        """Return the signals that arrived."""
        try:
            data = os.read(self.fd, _SIGINFO_SIZE * 16 if self._has_info else 64)
        except BlockingIOError:
            return []
        if not self._has_info:  # who sent it is unknown; what a terminal can send is taken to be from one
            from_terminal = {int(signal.SIGINT), int(signal.SIGQUIT), int(signal.SIGWINCH)}
            return [Arrived(number, number in from_terminal) for number in data]
        found = []
        for at in range(0, len(data), _SIGINFO_SIZE):
            number, _, code, _ = _SIGINFO.unpack_from(data, at)
            found.append(Arrived(number, code == _SENT_BY_KERNEL))
        return found


def _signalfd(numbers: set[Any]) -> int:
    """Return a descriptor to read signals from (signalfd(2)), -1 if the system has none."""
    if sys.platform != "linux":
        return -1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        mask = ctypes.create_string_buffer(128)  # sigset_t
        libc.sigemptyset(mask)
        for number in numbers:
            libc.sigaddset(mask, int(number))
        return int(libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1


def end_alike(ending: Ending) -> int:
    """Return the exit code of a recorded command, or die of the same signal as it did."""
    if ending.signal is not None and ending.signal in signal.Signals.__members__:
        number = signal.Signals[ending.signal]
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has written its core, if any
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        return 128 + int(number)
    return ending.code if ending.code is not None else 0
