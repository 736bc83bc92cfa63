"""`shardtui train` and `shardtui stop`: train and stop without the UI."""

import argparse
import asyncio
import contextlib
import os
from pathlib import Path
from statistics import median

from msgspec import Struct

from ...engine.base import formatting
from ...engine.base.output import note, say, show
from ...engine.base.processes import Deadline
from ...engine.base.user_error import UserError
from ...engine.spec.config import Restart
from ...engine.wire import run_directory
from ...engine.wire.commands import Stop
from ...engine.wire.events import (
    AnyEvent,
    CheckpointsKept,
    EngineReady,
    EngineStopped,
    Failed,
    Level,
    Paused,
    StepsDone,
)
from ...engine.wire.run_directory import RunDirectory, newest_checkpoint
from ..client import stopping
from ..client.engine_client import EngineClient
from ..client.started_engine import lost
from ..state.failures import Failures
from ..state.goodput import Goodput, goodput_words
from ..state.interpreter import apply
from ..state.run_state import Phase, RunState
from ..terminal import FAILED, FINE, INTERRUPTED
from ..terminal.clean import clean_events, json_line
from .headless import StopRequests, Throttle
from .options import add_json_option, add_local_options, add_run_argument, add_schedule_options, add_training_options
from .run import client_for
from .run_file import add_file_options


class StepDone(Struct, frozen=True, tag=True, kw_only=True):
    """One step of a `StepsDone` event: every step has its own line on stdout."""

    seq: int
    """Sequence number of its `StepsDone` event in `events.jsonl`."""
    time: float
    """Time of the report, in seconds since the epoch."""
    step: int
    """Number of the step, from 1."""
    loss: float | None
    """Loss of the step; null if it was not finite: then `nonfinite` names this field."""
    metrics: dict[str, float | None]
    """Other scalars of the step by name, as in `StepsDone`; null if one was not finite."""
    step_seconds: float
    """Seconds that the step took."""
    nonfinite: list[str]
    """Names of the fields that are null because the number was not finite."""


class RunEnded(Struct, frozen=True, tag=True, kw_only=True):
    """The last line of a run that was not refused, however it ended."""

    seq: int
    """Sequence number of the last event in `events.jsonl`."""
    time: float
    """Time of that event, in seconds since the epoch."""
    goodput: Goodput
    """Where the wall time of the run went, with that before it was resumed."""


def train_options(parser: argparse.ArgumentParser) -> None:
    add_file_options(parser)
    add_training_options(parser)
    add_local_options(parser)
    add_schedule_options(parser)
    add_json_option(parser)


def train_command(options: argparse.Namespace) -> int:
    if options.steps is None and not options.resume:
        raise UserError("train: --steps N is missing: give the number of steps to train")
    return asyncio.run(train(*client_for(options), options.json))


async def train(client: EngineClient, restart: Restart, as_json: bool) -> int:
    """Starts the engine, reports its events, and returns the exit code. Raises UserError if the engine refuses."""
    stops = StopRequests(client, "saving after this step, then stopping")
    report = _print_json if as_json else _Progress().report
    state, failures = RunState(), Failures()
    last = 0, 0.0
    place = client.directory.path.stat()
    client.start_engine(restart)
    async for events in client.events():
        for event in events if as_json else clean_events(events):
            apply(state, event)
            last = (event.seq, event.time) if event.seq else last
            if client.is_old(event):
                continue
            failures.add(event)
            with stops.reading():
                report(event, state)
            if isinstance(event, Failed) and event.refused:
                client.discard_if_new()
                raise UserError(*event.problems)
            say(*_warnings(event))
            if isinstance(event, Paused) and event.problem:  # nobody can decide without a UI
                await client.send(Stop())
    await client.wait_for_exit()  # the run can be resumed at once
    signals = stops.signals
    problems = await client.wait_for_metrics(lambda: stops.is_unread or stops.signals > signals)
    say(*problems)
    if stops.is_unread:
        return INTERRUPTED if stops.is_by_keyboard else FAILED
    with stops.reading():
        if as_json:
            seq, ended = last
            show(json_line(RunEnded(seq=seq, time=ended, goodput=state.goodput)))
        elif state.phase == Phase.STOPPED:
            _print_summary(state)
    if failures and (step := _newest_checkpoint(client.directory, place, state)):
        say(f"`shardtui train --resume {client.directory.name}` resumes from the checkpoint of step {step:,}")
    if stops.is_by_keyboard:
        return INTERRUPTED
    return FAILED if failures else FINE


def _newest_checkpoint(directory: RunDirectory, place: os.stat_result, state: RunState) -> int:
    """Returns its step, also if the engine was killed before it told of it; 0 if there is none, or if the directory of
    the run is no longer the one at `place`."""
    with contextlib.suppress(OSError):
        if state.config and os.path.samestat(place, directory.path.stat()):
            if "://" in (checkpoints := directory.checkpoints(state.config)):
                return state.newest.step if state.newest else 0
            return newest_checkpoint(Path(checkpoints))
    return 0


def _warnings(event: AnyEvent) -> list[str]:
    if isinstance(event, EngineReady):
        return event.warnings
    return [event.line] if event.level is Level.ERROR else []


def stop_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)


def stop_command(options: argparse.Namespace) -> int:
    return asyncio.run(stop(EngineClient(run_directory.find(options.run))))


async def stop(client: EngineClient) -> int:
    """Stops a run and waits for its end; returns 1 if it did not stop in order. Raises UserError for external loops."""
    if watched := client.directory.watched:
        raise UserError(watched.refusal)
    run, holder = client.directory, client.directory.holder()
    if not run.is_supervised and not (holder and holder.is_alive):
        show(f"run {run.name} has already ended")
        return FINE
    note("waiting for the current step to end")
    deadline = Deadline(stopping.exit_limit_seconds(run))
    problem = await stopping.stop(run, Stop(), deadline, lambda: False)
    problem = problem or await stopping.stop_supervisor(run, deadline)
    if problem == stopping.UNREACHABLE:
        show(f"run {run.name}: {stopping.unreachable_problem(run)}")
        return FAILED
    if problem:
        end = "killed without saving" if await stopping.kill(run) else "it cannot be killed"
        show(f"run {run.name}: {problem}: {end}")
        return FAILED
    last = stopping.end_event(run, holder and holder.pid) or lost(run.log)
    show(f"run {run.name}: {last.line}")
    return FINE if isinstance(last, EngineStopped) else FAILED


def _print_json(event: AnyEvent, _: RunState) -> None:
    for line in _steps(event) if isinstance(event, StepsDone) else [event]:
        show(json_line(line))


def _steps(event: StepsDone) -> list[StepDone]:
    first = event.step - len(event.losses) + 1
    return [
        StepDone(
            seq=event.seq,
            time=event.time,
            step=first + index,
            loss=loss,
            metrics={name: values[index] for name, values in event.metrics.items()},
            step_seconds=seconds,
            nonfinite=["loss"] if loss is None else [],
        )
        for index, (loss, seconds) in enumerate(zip(event.losses, event.step_seconds, strict=True))
    ]


class _Progress:
    """Prints every event on stderr, and steps at most every `PROGRESS_SECONDS`."""

    def __init__(self) -> None:
        self._throttle = Throttle()

    def report(self, event: AnyEvent, state: RunState) -> None:
        if isinstance(event, StepsDone):
            if self._throttle.is_due():
                rate = f"{state.tokens_per_second:,.0f} {state.counted}/s" if state.tokens_per_second else ""
                note(f"{event.line}   {rate}   {state.preset}")
        elif event.level not in (Level.ERROR, Level.UNLOGGED) and not isinstance(event, CheckpointsKept):
            note(event.line)


def _print_summary(state: RunState) -> None:
    from ..terminal.plain_table import plain_table, right, table_console

    rates = right("step time"), right(f"{state.counted}/s")
    table = plain_table("preset", "mesh", *rates, title=formatting.counted(state.step, "step"))
    for preset, times in state.timed.items():
        seconds = median(times)
        tokens = state.ready.tokens_per_step if state.ready else None
        rate = f"{tokens / seconds:,.0f}" if tokens else ""
        info = state.preset_info(preset)  # of an earlier engine, perhaps, which compiled it
        table.add_row(preset, formatting.axes(info.mesh) if info else "", formatting.seconds(seconds), rate)
    console = table_console()
    console.print(table)
    if state.losses:
        show(f"loss {state.losses[0]:.4f} → {state.losses[-1]:.4f}")
    if (last := state.evaluations.latest(state.step)) and (best := state.evaluations.best):
        show(f"held-out loss {last[1]:.4f} at step {last[0]:,}, best {best[1]:.4f} at step {best[0]:,}")
    for recovery in state.attempts.recoveries:
        show(recovery.words)
    show(f"goodput of {formatting.seconds(state.goodput.wall_seconds)}: {goodput_words(state.goodput)}")
    if state.profiled and state.profiled.breakdown:
        from ..state.alternative import alternative
        from .profile_report import profile_tables

        preset, breakdown = state.profiled.preset, state.profiled.breakdown
        console.print(*profile_tables(preset, breakdown, console.width, alternative(state, preset)), sep="\n")
