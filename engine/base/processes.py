"""Ends of processes: the words for an exit status, the wait for one that was asked to end, the end with the parent."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path

STOPPED_SECONDS = 4.0
"""A process that a signal has stopped for so long does not go on by itself; the others of its run soon miss it."""
KILL_SECONDS = 5.0
"""Time for a killed process to be gone: it takes longer only in a system call on storage or a device that hangs."""
LONGEST_POLL_SECONDS = 1.0
"""More time between two looks does not count: the process that looks was stopped itself."""
POLL_SECONDS = 0.05
FATAL = re.compile(r"F\d{4} |LLVM ERROR|terminate called|Fatal Python error")
"""Begins the last message of a library before it aborts the process."""
ABORTED = "Fatal Python error: Aborted"
"""What faulthandler writes before the stacks of a process that aborts itself, after the library's own words."""
STOPPED = "stopped by a signal, such as SIGSTOP"


def exit_words(status: int | None, process: str = "its process") -> str:
    """Returns how a process ended: words alone, since only an `Ending` says what an end means. `status`: as in
    `subprocess`, negative for a signal, None if unknown."""
    if status is None:
        return f"{process} has ended"
    if status >= 0:
        return f"{process} ended with status {status}"
    hint = ", as the system does when memory runs out" if status == -signal.SIGKILL else ""
    return f"{process} was ended by {_signal_name(-status)}{hint}"


def last_line(lines: Iterable[str]) -> str:
    """Returns the line with which a library aborted the process, before its stack trace, or else the last one."""
    texts = [line.strip() for line in lines if any(map(str.isalnum, line))]  # not XLA's rules of asterisks
    texts = list(takewhile(lambda line: line != ABORTED, texts)) or texts
    return next((line for line in texts if FATAL.match(line)), texts[-1] if texts else "")


def _signal_name(number: int) -> str:
    if signal.SIGRTMIN < number < signal.SIGRTMAX:  # `Signals` has no names for these
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; a debugger does not count."""
    return status(pid)[0] == "T"


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that its parent has not waited for is none."""
    return status(pid)[0] not in "ZX"


def cpu_time(pid: int) -> int:
    """Returns the hundredths of a second for which all threads of a process have run."""
    return sum(map(int, status(pid)[11:13]))


def status(pid: int) -> list[str]:
    """Returns the fields of proc_pid_stat(5) from the state on; of a process that has ended, its state `X` alone, or a
    zombie's fields."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # its name may be cut inside of a character
        return text.rpartition(")")[2].split()
    return ["X"]


def children(pid: int) -> list[int]:
    """Returns the children of a process; none if it has ended."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


class Clock:
    """Counts the seconds between two polls, at most `longest`."""

    def __init__(self, longest: float = LONGEST_POLL_SECONDS) -> None:
        self._longest, self._looked = longest, time.monotonic()
        self._last: object = None
        self._seconds = 0.0
        """For how long the value that is polled has been `_last`."""

    def passed(self) -> float:
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, self._longest), now
        return passed

    def unchanged(self, value: object) -> float:
        """Returns for how many seconds the value has been this one at each poll."""
        passed = self.passed()
        self._seconds = self._seconds + passed if value == self._last else 0.0
        self._last = value
        return self._seconds


class StopClock:
    """Counts for how long a signal has stopped a process, until it goes on. To be polled."""

    def __init__(self, pid: int) -> None:
        self._pid, self._clock = pid, Clock()

    def is_over(self) -> bool:
        stopped = is_stopped(self._pid)
        return self._clock.unchanged(stopped) >= STOPPED_SECONDS and stopped


class Deadline:
    """Limits how long processes that were asked to end are waited for.

    One that a signal has stopped cannot end: it is continued once, then waited for no longer than `STOPPED_SECONDS`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._clock = seconds, Clock()
        self._passed = 0.0
        self._stopped: dict[int, StopClock] = {}

    def problem(self, pids: Iterable[int]) -> str:
        """Returns why these are waited for no more; empty while they are. To be polled."""
        self._passed += self._clock.passed()
        for pid in pids:
            if pid not in self._stopped:
                self._stopped[pid] = StopClock(pid)
                send_signal(pid, signal.SIGCONT)
            elif self._stopped[pid].is_over():
                return f"process {pid} was {STOPPED}, again after it was continued"
        return f"still running {self._seconds:g} s after the request to stop" if self._passed > self._seconds else ""


def wait_for(process: "subprocess.Popen[bytes]", seconds: float, then: Callable[[], object]) -> bool:
    """Waits for a child until a `Deadline`, calls `then`, such as its `kill`, and waits again. Returns whether it has
    ended."""
    for limit in (seconds, KILL_SECONDS):
        deadline = Deadline(limit)
        while process.poll() is None and not deadline.problem([process.pid]):
            time.sleep(POLL_SECONDS)
        if process.poll() is not None:
            break
        then()
    return process.poll() is not None


def send_signal(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may be gone, or another user's."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def end_with_parent(received: Callable[[bytes], object] = bool) -> None:
    """Starts a thread that exits this process when its stdin closes, if that is a pipe: however the parent ended.
    `received` is called there with what the parent writes."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # there is no stdin
        return
    if piped:
        threading.Thread(target=_wait, args=(received,), name="parent watchdog", daemon=True).start()


def _wait(received: Callable[[bytes], object]) -> None:
    while data := os.read(0, 4096):
        received(data)
    os._exit(1)
