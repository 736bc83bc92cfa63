"""Runs the engine of one machine, and starts it again from its newest checkpoint if a process of it is lost."""

import contextlib
import os
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..base.output import say
from ..base.user_error import UserError
from ..spec.attempt import Attempt, LostProcess, Supervision
from ..spec.config import Restart
from ..wire import lock
from ..wire.ending import Ending, worst, write_ending
from ..wire.engine_command import engine_command
from ..wire.event_log import EventLog, deciding_events
from ..wire.events import Failed, StepsDone
from ..wire.run_directory import RunDirectory
from .boundary import Boundary, words
from .engine import Engine, Retries, SignalHandler

POLL_SECONDS = 0.05
NO_ENGINE = "stopped by a signal while no engine ran"


class Supervisor:
    """Runs one engine after the other until the run has ended."""

    def __init__(
        self, directory: RunDirectory, restart: Restart, supervision: Supervision, signals: SignalHandler
    ) -> None:
        self._directory = directory
        self._restart = msgspec.structs.replace(restart, fallback=supervision.fallback)
        self._retries = Retries(supervision.restarts)
        self._config = restart.config or directory.config
        self._least = min(supervision.min_processes or self._config.processes, self._config.processes)
        self._signals = signals
        self._boundary = Boundary(lambda: signals.count)

    def run(self) -> int:
        """Returns the exit code of the run: 0, 1 if it failed, 2 if it was refused."""
        count = self._config.processes
        attempt = Attempt(number=1, supervisor=os.getpid(), processes=count, of=count)
        while True:
            process, ending = worst(self._run_attempt(attempt))
            if ending.is_orderly:
                return 0
            if ending.kind == "refused" and attempt.number == 1:
                write_ending(ending)
                return 2
            is_blocked = self._boundary.is_blocked(ending) and not self._signals.count
            following = self._again(attempt, process, ending) if is_blocked else self._next(attempt, process, ending)
            if isinstance(following, str):
                give_up(self._directory, following)
                return 1
            attempt = following
            resumes = (
                f"attempt {attempt.number} resumes from the newest checkpoint, or from the start if there is none yet"
            )
            if not is_blocked:
                say(f"process {process} was lost: {ending.why}: {resumes}")

    def _next(self, attempt: Attempt, process: int, ending: Ending) -> Attempt | str:
        """Returns the next attempt, or why there is none. `process`: the one that ended the last attempt."""
        if not self._signals.count and (without := self._without(attempt, ending)):
            return without
        self._retries.note(process, ending, last_step(self._directory.events))
        is_dead = self._retries.is_repeated and ending.kind in ("killed", "lost", "stuck")
        count = ending.fits or attempt.processes - is_dead  # fewer if no preset fits so many, or one keeps being lost
        if self._signals.count:
            return ending.why
        if self._least <= count < attempt.processes:
            self._retries.forget_faults()
        elif ending.kind in ("refused", "late"):
            return f"{ending.why}; --min-processes {self._least} allows no fewer" if ending.fits else ending.why
        elif problem := self._retries.problem:
            return problem
        return self._again(attempt, process, ending, processes=count if count >= self._least else attempt.processes)

    def _again(self, attempt: Attempt, process: int, ending: Ending, **changes: object) -> Attempt:
        lost = LostProcess(process, ending.why)
        return msgspec.structs.replace(attempt, number=attempt.number + 1, lost=lost, **changes)

    def _without(self, attempt: Attempt, ending: Ending) -> Attempt | None:
        """Returns the next attempt without the devices that were wrong; None if there are none, or all are needed. One
        process goes on with its other devices; of several, those with such a device are left out."""
        wrong = list(ending.wrong)
        count = attempt.processes - len(wrong)
        if not wrong or 1 < attempt.processes > count < self._least:
            return None
        left_out = tuple(ending.wrong[0]) if attempt.processes == 1 else ()
        left_out = (*attempt.left_out, *left_out)
        return self._again(attempt, wrong[0], ending, processes=max(count, 1), left_out=left_out)

    def _run_attempt(self, attempt: Attempt) -> dict[int, Ending]:
        if attempt.number == 1:
            engine = self._started_first(attempt)
        else:
            engine = self._boundary.retried("start", lambda: self._started(attempt))
        if engine is None:
            return {0: Ending(kind="lost", problems=[NO_ENGINE])}
        self._signals.follow(engine)
        while True:
            with self._boundary.turn("engine"):
                if endings := engine.ended():
                    return endings
            time.sleep(POLL_SECONDS)

    def _started_first(self, attempt: Attempt) -> Engine:
        """Raises UserError if the run cannot begin."""
        try:
            return self._started(attempt)
        except OSError as error:
            raise UserError(words(error)) from error

    def _started(self, attempt: Attempt) -> Engine:
        restart = msgspec.structs.replace(self._restart, attempt=attempt)
        if attempt.number > 1:  # what was asked for the first start holds for it alone
            restart = msgspec.structs.replace(restart, step=None, preset=None, profile=None)
        commands = {
            index: engine_command("serve", str(self._directory.path), restart, *member)
            for index, member in enumerate(self._directory.new_members(attempt.processes))
        }
        return Engine(self._directory, self._config, commands)


def supervise(directory: str, restart: Restart, supervision: Supervision) -> int:
    """Supervises a run of this machine, and returns its exit code. Raises UserError if another supervisor does."""
    run = RunDirectory(Path(directory))
    with held(run), SignalHandler() as signals:
        return Supervisor(run, restart, supervision, signals).run()


def held(run: RunDirectory) -> BinaryIO:
    try:
        return lock.take(run.supervisor_lock)
    except UserError as error:
        raise UserError(
            f"run {run.name} has a supervisor already: `shardtui stop {run.name}` ends the run and both ({error})"
        ) from error


def give_up(run: RunDirectory, problem: str) -> None:
    """Says why the run is not started again, also to its viewers. Its engine has ended."""
    say(problem)
    with contextlib.suppress(UserError, OSError), run.hold():
        EventLog(run.events, lambda _: None).append(Failed(problems=[problem], refused=False, by_supervisor=True))


def last_step(history: Path) -> int:
    """Returns the last step that was reported; 0 if none was, or the history cannot be read."""
    try:
        events = deciding_events(history)
    except (UserError, OSError):
        return 0
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)
