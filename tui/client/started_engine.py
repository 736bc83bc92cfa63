"""An engine that was started from here: its processes, how they end, and what the run held before it."""

import contextlib
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

from ...engine.base.append import append_regular
from ...engine.spec.config import Membership, Restart
from ...engine.wire import framing
from ...engine.wire.event_log import LogReader, last_seq
from ...engine.wire.events import AnyEvent, EngineStarted, Failed
from ...engine.wire.run_directory import RunDirectory
from ..terminal.clean import printable
from ..terminal.exit_codes import REFUSED
from .last_words import exit_reason, last_words


class StartedEngine:
    """In a session of its own, so that it outlives this terminal."""

    def __init__(self, directory: RunDirectory, restart: Restart) -> None:
        """`restart`: how it goes on with a run. Raises OSError, and Invalid."""
        self._directory = directory
        self._before = last_seq(directory.events)
        """The last event before it."""
        self._recorded, self.logged = map(_size, (directory.events, directory.log))
        """Bytes of the events and of the log from before it."""
        self._is_new = [path.name for path in directory.path.iterdir()] == ["run.json"]
        """Nothing was in the directory but what the run was to be."""
        self._processes = _start(directory, restart)
        """Of several the first is the one that serves viewers."""

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    @property
    def is_alive(self) -> bool:
        return self._processes[0].poll() is None

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def is_old(self, event: AnyEvent) -> bool:
        """It is of an engine before this one."""
        return 0 < event.seq <= self._before

    def discard_if_new(self) -> None:
        """Leaves no directory of a run that could not begin."""
        if self._is_new:
            self._directory.discard()

    def refusal(self) -> Failed | None:
        """Why it made no beginning. Where it did, the events before it are old: those of another one may have come
        meanwhile."""
        rival = 0
        with contextlib.suppress(OSError):
            for event in chain.from_iterable(LogReader(self._directory.events, self._recorded).read()):
                if isinstance(event, EngineStarted):
                    if event.pid == self.pid:
                        self._before = event.seq - 1
                        return None
                    rival = event.pid
        if self._processes[0].poll() != REFUSED:
            return None
        self.kill()  # of several processes the others
        holder = self._directory.holder()
        if holder is None and not rival:
            return _refusal(printable(last_words(self._directory.log, self.logged)))
        self._is_new = False
        name, who = self._directory.name, holder.words if holder else f"process {rival}"
        attach = f"`shardtui attach {name}` shows it"
        return _refusal(f"run {name}: {who} trains it, which was started at the same moment: {attach}")

    def end(self) -> tuple[int, str]:
        """Of an engine that has ended: which process was gone first, and how. One that aborts where another was killed
        did so for want of that one."""
        ends = [process.poll() or 0 for process in self._processes]
        killed = (number for number, status in enumerate(ends) if status < 0 and status != -signal.SIGABRT)
        first = next(killed, 0)
        return first, exit_reason(ends[first])


def _start(directory: RunDirectory, restart: Restart) -> list["subprocess.Popen[bytes]"]:
    how = framing.encode_json(restart).decode()
    count = (restart.config or directory.config).processes
    if count == 1:
        return [_process(directory, directory.log, how)]
    coordinator = f"unix:{directory.new_coordinator()}"
    members = [Membership(coordinator=coordinator, processes=count, process=number) for number in range(count)]
    return [
        _process(directory, directory.log_of(member.process or 0), how, framing.encode_json(member).decode())
        for member in members
    ]


def _process(directory: RunDirectory, log: Path, *how: str) -> "subprocess.Popen[bytes]":
    """With `-P` modules in the user's directory, a `random.py` say, do not take the place of Python's."""
    with append_regular(log) as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "shardtui.engine", "serve", str(directory.path), *how],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _refusal(problem: str) -> Failed:
    return Failed(problems=[problem], refused=True, time=time.time())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
