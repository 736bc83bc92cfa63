"""The engine processes that one supervisor has started: how signals stop them, and whether they are started again."""

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..base.regular_file import append_regular
from ..base.stacks import DUMP_SIGNAL, append_stacks
from ..wire.ending import Ending, Kind, read_ending
from ..wire.run_directory import RunDirectory

SETTLE_SECONDS = 5.0
"""Time for the other processes to end after one has failed: they are informed, and record why they end."""
CLOSING_SECONDS = 40.0
"""The same after one has ended in order: process 0 waits 30 s for the others."""
STACKS_SECONDS = 2.0
KINDS: tuple[Kind, ...] = ("refused", "stuck", "failed", "killed", "lost", "stopped", "finished")
"""The first of these that a process has ended with is how the engine ended."""
STOPPED_SECONDS = 4.0
"""A process that a signal has stopped for so long is ended: before the others miss its heartbeats."""
STOPPED = "stopped by a signal, such as SIGSTOP"
SILENT_SECONDS = 20.0
"""The same for one in which Python has not run for so long, in the middle of a step…"""
LONG_SILENT_SECONDS = 300.0
"""…or of anything else, such as a compilation."""
LONGEST_POLL_SECONDS = 1.0
"""More time between two looks does not count: the supervisor itself was stopped."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
WINDOW_SECONDS = 3600.0
SAME_FAULTS = 3
"""An engine that ends in the same way after the same step so often in a row is not started again."""


class ProcessHealth:
    def __init__(self, pid: int, beat: Path) -> None:
        """`beat`: the file in which the process writes twice a second whether it is in a step."""
        self._pid, self._beat = pid, beat
        self._stopped = self._silent = 0.0
        """Seconds for which it has been stopped, and has not written."""
        self._touched = 0
        self._looked = time.monotonic()

    @property
    def is_stopped(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False

    def problem(self) -> str | None:
        """Returns why the process cannot go on; None if it can. Poll it."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_POLL_SECONDS), now
        self._stopped = self._stopped + passed if self.is_stopped else 0.0
        with contextlib.suppress(OSError):
            touched = self._beat.stat().st_mtime_ns
            self._silent = self._silent + passed if touched == self._touched else 0.0
            self._touched = touched
        if self._stopped >= STOPPED_SECONDS:
            return STOPPED
        if self._silent < SILENT_SECONDS or self._stopped:
            return None
        if self._silent >= LONG_SILENT_SECONDS or self.written().startswith("step"):
            return f"stuck for {self._silent:.0f} s in native code that keeps Python from running"
        return None

    def written(self) -> str:
        """Returns what is in its file: `step` or `else`, or its stacks, once it has been asked for them."""
        with contextlib.suppress(OSError):
            return self._beat.read_text(errors="replace")
        return ""


@dataclass(frozen=True)
class Child:
    process: int
    popen: "subprocess.Popen[bytes]"
    health: ProcessHealth


class Engine:
    """The processes of one attempt on this machine. They end if this process does."""

    def __init__(
        self, directory: RunDirectory, commands: Mapping[int, Sequence[str]], logs: Mapping[int, Path], stacks: Path
    ) -> None:
        """`commands` and `logs` by process index; a process without a log inherits stdout and stderr. `stacks`: the
        file for the stacks of processes that cannot go on."""
        self._directory, self._stacks = directory, stacks
        self._theirs, self._ours = os.pipe()
        self._settled_at: float | None = None
        self._killed: set[int] = set()
        """Processes that were killed from here, because another one had ended."""
        self._dead: dict[int, Ending] = {}
        """Processes that were killed because they could not go on."""
        self._children = [self._start(process, command, logs.get(process)) for process, command in commands.items()]
        os.close(self._theirs)

    def _start(self, process: int, command: Sequence[str], log: Path | None) -> Child:
        self._directory.ending(process).unlink(missing_ok=True)
        (beat := self._directory.beat(process)).unlink(missing_ok=True)
        with append_regular(log) if log else contextlib.nullcontext() as file:
            popen = subprocess.Popen(command, stdin=self._theirs, stdout=file, stderr=file)
        return Child(process, popen, ProcessHealth(popen.pid, beat))

    def ended(self) -> dict[int, Ending] | None:
        """Returns how each process ended, once all have; None before. Ends those that do not end by themselves. The
        processes that had to be ended after another are left out: what ended the engine is known from the others. To be
        called all the time, as it also looks whether they can go on."""
        for child in self._children:
            if child.popen.poll() is None and (problem := child.health.problem()):
                self._end_dead(child, problem)
        gone = [child for child in self._children if child.popen.poll() is not None]
        if not gone:
            return None
        if len(gone) < len(self._children):
            self._end_rest(gone)
            return None
        os.close(self._ours)
        for child in self._children:
            self._directory.beat(child.process).unlink(missing_ok=True)
        by_themselves = [child for child in self._children if child.process not in self._killed] or self._children
        return {child.process: self._ending(child) for child in by_themselves}

    def _end_rest(self, gone: Sequence[Child]) -> None:
        """Kills the other processes at once if one was killed or stuck, else if they do not end in time."""
        kinds = {self._ending(child).kind for child in gone}
        if kinds & {"killed", "stuck"}:
            limit = 0.0
        else:
            limit = SETTLE_SECONDS if kinds & {"failed", "refused", "lost"} else CLOSING_SECONDS
        self._settled_at = self._settled_at or time.monotonic()
        if time.monotonic() - self._settled_at >= limit:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.popen.poll() is None:
                child.popen.send_signal(number)

    def kill(self) -> None:
        for child in self._children:
            if child.popen.poll() is not None:
                continue
            if child.health.is_stopped:  # why the others have ended
                self._dead[child.process] = Ending(kind="stuck", problems=[STOPPED])
            else:
                self._killed.add(child.process)
            child.popen.kill()

    def _end_dead(self, child: Child, problem: str) -> None:
        """Kills a process that cannot go on, after it has written its stacks if it can."""
        self._dead[child.process] = Ending(kind="stuck", problems=[problem])
        if problem != STOPPED:
            child.popen.send_signal(DUMP_SIGNAL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.popen.wait(STACKS_SECONDS)
        child.popen.kill()
        child.popen.wait()
        header = f"process {child.process}, pid {child.popen.pid}: {problem}"
        with contextlib.suppress(OSError):
            append_stacks(self._stacks, header, child.health.written())

    def _ending(self, child: Child) -> Ending:
        if child.process in self._dead:
            return self._dead[child.process]
        return read_ending(self._directory.ending(child.process)) or _ending_of(child.popen.returncode)


def worst(endings: Mapping[int, Ending]) -> tuple[int, Ending]:
    return min(endings.items(), key=lambda item: (KINDS.index(item[1].kind), item[0]))


def _ending_of(status: int) -> Ending:
    """Returns the ending of a process that recorded none. jax aborts a process whose coordinator is gone."""
    if status == -signal.SIGABRT:
        return Ending(kind="lost", problems=["its process was aborted, as jax does when process 0 is gone"])
    if status < 0:
        return Ending(kind="killed", problems=[f"its process was ended by {signal.Signals(-status).name}"])
    kinds: dict[int, Kind] = {0: "stopped", 2: "refused"}
    return Ending(
        kind=kinds.get(status, "failed"), problems=[f"its process ended with status {status}"] if status else []
    )


class SignalHandler:
    """Counts the signals to stop that arrive in this context: the first stops the engine in order, the second kills it.
    After it signals are ignored: the run has ended, and they could only change the exit code."""

    def __init__(self) -> None:
        self.count = 0
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            signal.signal(number, lambda *_: self._stop())
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def follow(self, engine: Engine) -> None:
        """Takes over an engine that has just been started, and stops it if a signal arrived before."""
        self._engine = engine
        if self.count:
            engine.signal(signal.SIGTERM)

    def _stop(self) -> None:
        self.count += 1
        if self._engine is None:
            return
        if self.count > 1:
            self._engine.kill()
        else:
            self._engine.signal(signal.SIGTERM)


class Retries:
    def __init__(self, most: int) -> None:
        self._most = most
        self._restarts: deque[float] = deque(maxlen=most + 1)
        self._faults: deque[tuple[int, Ending, int]] = deque(maxlen=SAME_FAULTS)

    def note(self, rank: int, ending: Ending, step: int) -> None:
        """Counts the end of an engine. `rank`: the process that ended it. `step`: the last step that was trained."""
        begun = ending.step if ending.kind == "stuck" else 0  # not known if the process could not say it
        self._faults.append((rank, ending, begun or step))
        self._restarts.append(time.monotonic())

    @property
    def is_repeated(self) -> bool:
        different = {(rank, ending.fault, step) for rank, ending, step in self._faults}
        return len(different) == 1 and len(self._faults) == SAME_FAULTS

    def forget_faults(self) -> None:
        self._faults.clear()

    @property
    def problem(self) -> str | None:
        """Why the engine is not started again; None if it is. Call `note` first."""
        rank, ending, step = self._faults[-1]
        why = "; ".join(ending.problems) or ending.kind
        if self.is_repeated:
            return (
                f"process {rank} ended {SAME_FAULTS} times in a row after step {step:,}, each time because: {why}: not "
                "started again: the cause is in that step or in the model, not in the machine"
            )
        if len(self._restarts) > self._most and time.monotonic() - self._restarts[0] < WINDOW_SECONDS:
            return (
                f"the engine was restarted {self._most} times within an hour, the limit of --restarts, and ended "
                f"again: process {rank}: {why}"
            )
        return None
