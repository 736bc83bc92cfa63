"""Runs the engine of one machine, and starts it again from its newest checkpoint if a process of it is lost."""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from ..base.invalid import Invalid
from ..spec.config import Restart
from ..spec.epoch import Epoch, LostProcess, Supervision
from ..wire import lock
from ..wire.ending import Ending
from ..wire.engine_command import engine_command
from ..wire.event_log import deciding_events
from ..wire.events import StepsDone
from ..wire.run_directory import RunDirectory
from .engine import Engine, worst
from .retries import Retries

POLL_SECONDS = 0.05
"""Interval at which the processes are checked."""


class Supervisor:
    """Runs one engine after the other until the run has ended."""

    def __init__(self, directory: RunDirectory, restart: Restart, supervision: Supervision) -> None:
        self._directory = directory
        self._restart = restart
        self._retries = Retries(supervision.restarts)
        self._engine: Engine | None = None
        self._signals = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())

    def run(self) -> int:
        """Returns the exit code of the run: 0, 1 if it failed, 2 if it was refused."""
        number, lost = 1, None
        while True:
            process, ending = worst(self._run_epoch(Epoch(number=number, supervisor=os.getpid(), lost=lost)))
            if ending.is_orderly:
                return 0
            if ending.kind == "refused":
                return 2
            problem = self._retries.problem(process, ending, _last_step(self._directory))
            if problem or self._signals:
                print(f"shardtui: {problem or _why(ending)}", file=sys.stderr, flush=True)
                return 1
            number, lost = number + 1, LostProcess(process, _why(ending))
            print(
                f"shardtui: process {process} was lost: {lost.why}: epoch {number} resumes from the newest checkpoint",
                file=sys.stderr,
                flush=True,
            )

    def _run_epoch(self, epoch: Epoch) -> dict[int, Ending]:
        restart = msgspec.structs.replace(self._restart, epoch=epoch)
        if epoch.number > 1:  # what was asked for the first start holds for it alone
            restart = msgspec.structs.replace(restart, step=None, preset=None, profile=None)
        count = (restart.config or self._directory.config).processes
        commands = {
            index: engine_command("serve", str(self._directory.path), restart, *member)
            for index, member in enumerate(self._directory.new_members(count))
        }
        self._engine = Engine(self._directory, commands, {index: self._directory.log_of(index) for index in commands})
        if self._signals:  # one that arrived between two epochs
            self._engine.signal(signal.SIGTERM)
        while (endings := self._engine.ended()) is None:
            time.sleep(POLL_SECONDS)
        return endings

    def _stop(self) -> None:
        """Stops the engine in order on the first signal, and kills it on the second."""
        self._signals += 1
        if self._engine is None:
            return
        if self._signals > 1:
            self._engine.kill()
        else:
            self._engine.signal(signal.SIGTERM)


def supervise(directory: str, restart: Restart, supervision: Supervision) -> int:
    """Supervises a run of this machine, and returns its exit code. Raises Invalid if another supervisor does."""
    run = RunDirectory(Path(directory))
    try:
        held = lock.take(run.supervisor_lock)
    except Invalid as error:
        raise Invalid(
            f"run {run.name} has a supervisor already: `shardtui stop {run.name}` ends the run and both ({error})"
        ) from error
    with held:
        return Supervisor(run, restart, supervision).run()


def _why(ending: Ending) -> str:
    return "; ".join([*ending.problems, *ending.lost.values()]) or ending.kind


def _last_step(run: RunDirectory) -> int:
    """Returns the last step that was reported; 0 if none was, or the history cannot be read."""
    try:
        events = deciding_events(run.events)
    except (Invalid, OSError):
        return 0
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)
