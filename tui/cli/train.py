"""`shardtui train` and `shardtui stop`: a run without the UI."""

import sys
import time
from statistics import median

from msgspec import Struct

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import Restart
from ...engine.wire.commands import Stop
from ...engine.wire.events import (
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointsKept,
    Disconnected,
    EngineLost,
    EngineReady,
    EngineStopped,
    Failed,
    MemoryMeasured,
    Paused,
    ProfileFailed,
    StepsDone,
    SwitchFailed,
)
from ..client import stopping
from ..client.engine_client import EngineClient
from ..state.log_lines import in_words
from ..state.run_state import Phase, RunState
from ..terminal.clean import json_line, printable, warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED
from .audience import Audience
from .interrupts import Interrupts

PROGRESS_SECONDS = 2.0
TROUBLE = SwitchFailed | CheckpointFailed | CheckpointDamaged | ProfileFailed | EngineLost | Disconnected | Failed


class StepDone(Struct, frozen=True, tag=True, kw_only=True):
    """One step of a `StepsDone`: on stdout every step has a line of its own."""

    seq: int
    time: float
    step: int
    loss: float | None
    step_seconds: float
    nonfinite: list[str]


async def train(client: EngineClient, restart: Restart, as_json: bool) -> int:
    """Starts the engine, tells what happens, and returns the exit code. Raises Invalid where the engine refuses."""
    interrupts = Interrupts(client, "saving after this step, then stopping; again to kill the engine")
    report = _print_json if as_json else _Progress().report
    state = RunState()
    code = FINE
    client.start_engine(restart)
    audience = Audience(client, "saving after this step, then stopping")
    async for events in client.events(cleaned=not as_json):
        for event in events:
            state.apply(event)
            if client.is_old(event):
                continue
            with audience.reads():
                report(event, state)
            if isinstance(event, Failed) and event.refused:
                client.discard_if_new()
                raise Invalid(*event.problems)
            with audience.reads():
                warn(*_warnings(event))
            if _is_trouble(event):
                code = code if isinstance(event, CheckpointDamaged) else FAILED  # then an older one is used
            if isinstance(event, Paused) and event.problem:  # nobody is here to decide
                await client.send(Stop())
    await client.has_ended()  # who resumes the run next finds nobody
    if audience.is_gone:
        return INTERRUPTED if interrupts.by_keyboard else FAILED
    if not as_json and state.phase == Phase.STOPPED:
        _print_summary(state)
    if code and state.checkpoints:
        step = state.checkpoints[-1].step
        warn(f"`shardtui train --resume {client.directory.name}` goes on from the checkpoint of step {step:,}")
    return INTERRUPTED if interrupts.by_keyboard else code


def _warnings(event: AnyEvent) -> list[str]:
    if isinstance(event, EngineReady):
        return event.warnings
    return [in_words(event)] if _is_trouble(event) else []


def _is_trouble(event: AnyEvent) -> bool:
    return isinstance(event, TROUBLE) or (isinstance(event, Paused) and event.problem is not None)


async def stop(client: EngineClient) -> int:
    """Tells an engine to stop and waits until it has; 1 where it did not stop in order. Raises Invalid where the run is
    only watched."""
    if watched := client.directory.watched:
        raise Invalid(watched.refusal)
    name, holder = client.directory.name, client.directory.holder()
    if holder is None or not holder.is_alive:
        print(f"run {name} has ended already")
        return FINE
    print("waiting for the current step to end", file=sys.stderr)
    patience = stopping.patience(client.directory)
    until = time.monotonic() + patience
    match await stopping.stop(client.directory, Stop(), lambda: time.monotonic() > until):
        case "unheard":
            print(printable(f"run {name}: {stopping.unheard(client.directory)}"))
            return FAILED
        case "late":
            await stopping.kill(client.directory)
            print(f"run {name}: not ended {patience:g} s after it was told to stop: killed, and not saved")
            return FAILED
        case "ended":
            pass
    last = stopping.last_word(client.directory, holder) or EngineLost(reason=client.reason())
    print(printable(f"run {name}: {in_words(last)}"))
    return FINE if isinstance(last, EngineStopped) else FAILED


def _print_json(event: AnyEvent, _: RunState) -> None:
    for line in _steps(event) if isinstance(event, StepsDone) else [event]:
        print(json_line(line), flush=True)


def _steps(event: StepsDone) -> list[StepDone]:
    first = event.step - len(event.losses) + 1
    return [
        StepDone(
            seq=event.seq,
            time=event.time,
            step=first + index,
            loss=loss,
            step_seconds=seconds,
            nonfinite=["loss"] if loss is None else [],
        )
        for index, (loss, seconds) in enumerate(zip(event.losses, event.step_seconds, strict=True))
    ]


class _Progress:
    """Lines on stderr: every event in words, the steps every other second."""

    def __init__(self) -> None:
        self._told = 0.0

    def report(self, event: AnyEvent, state: RunState) -> None:
        if isinstance(event, MemoryMeasured | CheckpointsKept) or _is_trouble(event):
            return
        if not isinstance(event, StepsDone):
            print(in_words(event), file=sys.stderr)
        elif time.monotonic() - self._told > PROGRESS_SECONDS:
            self._told = time.monotonic()
            rate = f"{state.tokens_per_second:,.0f} {state.counted}/s" if state.tokens_per_second else ""
            print(f"{in_words(event)}   {rate}   {state.preset}", file=sys.stderr)


def _print_summary(state: RunState) -> None:
    from rich.table import Table

    from ..terminal.plain_console import plain_console

    table = Table("preset", "mesh", "step time", f"{state.counted}/s", title=f"{state.step:,} steps")
    for preset, times in state.timed.items():
        seconds = median(times)
        tokens = state.ready.tokens_per_step if state.ready else None
        rate = f"{tokens / seconds:,.0f}" if tokens else ""
        mesh = figures.axes(state.compiled[preset].mesh.axes)
        table.add_row(preset, mesh, figures.seconds(seconds), rate)
    plain_console().print(table)
    if state.losses:
        print(f"loss {state.losses[0]:.4f} → {state.losses[-1]:.4f}")
