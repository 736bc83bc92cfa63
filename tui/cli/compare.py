"""`shardtui compare`: measures presets one after the other in one engine, next to their predictions."""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.output import note, printable, say, show
from ...engine.base.user_error import UserError
from ...engine.planning.ranking import Row
from ...engine.spec.config import RunConfig
from ...engine.wire import run_directory
from ...engine.wire.commands import AnyCommand, Resume, Stop
from ...engine.wire.descriptions import DeviceInfo, PresetInfo, PresetListing
from ...engine.wire.events import (
    AnyEvent,
    EngineReady,
    Failed,
    Paused,
    PresetCompiled,
    PresetCompiling,
    Resumed,
    StepsDone,
    Switched,
    SwitchFailed,
    TrainingStarted,
)
from ..client.engine_client import EngineClient, ask_engine
from ..client.planner import estimates
from ..state import board_rows
from ..state.comparison import WARM_UP_STEPS, Comparison, comparable_presets, in_progress
from ..state.interpreter import apply
from ..state.measured_rows import columns, devices, in_order, row_of, verdict
from ..state.run_state import Phase, RunState
from ..terminal import FAILED, FINE, INTERRUPTED
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import Column, figure, table_console, table_of
from . import values
from .headless import StopRequests, Throttle
from .options import add_data_options, add_device_options, add_json_option, add_model_options
from .run_config import compared


class CompareReport(Struct, frozen=True, kw_only=True):
    """Presets measured one after the other in one engine."""

    schema: int = 4
    """Version of this schema; grows when a field changes its meaning or is removed."""
    model: str
    """Name of the model."""
    devices: list[DeviceInfo]
    """Devices of the run; empty if no preset fits."""
    versions: dict[str, str]
    """Versions of Python and the packages, by name; empty if no preset fits."""
    memory_source: Literal["allocator", "live arrays"] | None
    """Source of `bytes_in_use`: `allocator`, or `live arrays` (without temporaries) if the backend has no allocator
    statistics; null if nothing was measured."""
    steps: int
    """Steps to measure under each preset."""
    warm_up: int
    """Steps after each switch that are not measured. Steps during a compilation, a save or a trace are not measured
    either."""
    rows: list[Row]
    """The presets, fastest first; those that were not measured come last."""
    recommendation: str
    """The best one and why, in a sentence."""
    complete: bool
    """Whether `steps` steps of every preset were measured."""


SENT_BY_FORMULA: Column[Row] = figure(
    "traced sent", lambda row: row.estimate.bytes_sent if row.estimate else None, formatting.size, leaves=1
)
"""Beside the bytes as compiled, to compare; the view has them for the presets that are not compiled yet."""
CAPTION = "per device and step; predictions by the compiler, ≈ traced"
REPORTED = PresetCompiled | TrainingStarted | Switched | SwitchFailed | Paused | Resumed | Failed


def compare_options(parser: argparse.ArgumentParser) -> None:
    add_data_options(parser)
    add_device_options(parser)
    add_model_options(parser)
    add, presets = parser.add_argument, "names or .toml files; default: all that fit except the pitfalls"
    steps = "steps to measure under each preset, after the warm-up; default 20"
    add("presets", nargs="*", type=values.preset, metavar="PRESET", help=f"{presets}; see `shardtui presets`")
    add("--steps", type=int, dest="measured", default=20, metavar="N", help=steps)
    add_json_option(parser)


def compare_command(options: argparse.Namespace) -> int:
    """Measures the presets and prints the board; returns 1 if one was not fully measured. Raises UserError."""
    run_directory.runtime_directory()  # an unusable one is refused before anything is created
    config, named = compared(options)
    note("looking for devices")
    (listing,) = ask_engine(PresetListing, "presets", config)
    say(*listing.problems)
    infos = {info.name: info for info in listing.presets}
    wanted = [infos[name] for name in dict.fromkeys(named or comparable_presets(listing.presets))]
    session = _Session(config, wanted, options.measured)
    code = asyncio.run(session.measure())
    report = session.report()
    if options.json:
        show(json_line(report))
    else:
        _print_board(session)
    return code or (FINE if report.complete else FAILED)


class _Session:
    """Measures all presets in one engine; if it is lost, another one continues with the remaining presets."""

    def __init__(self, config: RunConfig, presets: Sequence[PresetInfo], steps: int) -> None:
        self.ready: EngineReady | None = None
        self._config = config
        self._infos = {info.name: info for info in presets}
        self._steps = steps
        self._state = RunState()
        self._rows = {name: row_of(info, self._state) for name, info in self._infos.items()}
        self._remaining = [info.name for info in presets if info.fits]
        self._estimates: dict[str, Row] = {}
        self._progress = _Progress()

    @property
    def rows(self) -> list[Row]:
        rows = dict(self._rows)
        for name in rows.keys() & self._estimates.keys():  # an engine may be lost before it has estimates
            known = self._estimates[name]
            rows[name] = msgspec.structs.replace(rows[name], estimate=known.estimate, no_estimate=known.no_estimate)
        return in_order(list(rows.values()))

    def report(self) -> CompareReport:
        ready, memory = self.ready, self._state.memory
        return CompareReport(
            model=self._config.model_name,
            devices=ready.devices if ready else [],
            versions=ready.versions if ready else {},
            memory_source=memory.source if memory else None,
            steps=self._steps,
            warm_up=WARM_UP_STEPS,
            rows=self.rows,
            recommendation=verdict(self.rows, devices(ready)),
            complete=all(row.measured and row.measured.steps == self._steps for row in self.rows),
        )

    async def measure(self) -> int:
        """Measures all presets. Returns an exit code other than 0 if it was cancelled. Raises UserError."""
        code = 0
        while self._remaining and not code:
            code = await self._run()
            self._take_rows("interrupted" if code else None)
        return code

    def _take_rows(self, why: str | None) -> None:
        """Takes the rows of an engine that has ended; the preset at which it was lost is not tried again."""
        found = {name: row_of(self._infos[name], self._state) for name in self._remaining}
        if culprit := None if why else self._lost_at():
            found[culprit] = msgspec.structs.replace(found[culprit], measured=None, problems=self._state.problems)
        remaining = [name for name, row in found.items() if not (row.measured or row.problems)]
        if not culprit:
            comparison = self._state.comparison
            why = why or (comparison and comparison.ended_by) or "the run ended"
            found |= {
                name: msgspec.structs.replace(found[name], problems=[f"not measured: {why}"]) for name in remaining
            }
        self._remaining = remaining if culprit else []
        self._rows |= found

    def _lost_at(self) -> str | None:
        """Returns the preset at which the engine was lost; None if it was not lost, or had measured all presets."""
        comparison = self._state.comparison
        if self._state.phase not in (Phase.FAILED, Phase.LOST):
            return None
        if comparison is None:
            return self._remaining[0]
        return comparison.current if comparison.ended_by else None

    async def _run(self) -> int:
        """Runs one engine to its end. Returns an exit code other than 0 if no other engine is to follow."""
        name = run_directory.free_name(self._config.run)
        client = EngineClient(
            run_directory.create(msgspec.structs.replace(self._config, run=name, preset=self._remaining[0]))
        )
        stops = StopRequests(client, "stopping after this step")
        estimating: asyncio.Task[None] | None = None
        self._state = RunState()
        client.start_engine()
        async for events in client.events():
            for event in events:
                apply(self._state, event)
                if isinstance(event, EngineReady):
                    self.ready = event
                    say(*event.warnings)
                    estimating = asyncio.create_task(self._estimate(event))
                command = self._next(event, estimating is not None and estimating.done())
                if stops.signals or stops.is_unread:
                    command = Stop()  # again: it may not have been listening before
                if command:
                    await client.send(command)
                self._progress.report(event, self._state)
        if estimating:
            estimating.cancel()
            with suppress(asyncio.CancelledError):
                await estimating
        if not await client.wait_for_exit():
            client.kill_engine()  # it has reported its end, or is no longer followed
        return self._end(client, stops)

    def _end(self, client: EngineClient, stops: StopRequests) -> int:
        """Deletes the engine's directory unless it helps to find a failure. Raises UserError and SystemExit."""
        last = self._state.events[-1]
        is_refused = isinstance(last, Failed) and last.refused
        is_cancelled = stops.signals or stops.is_unread
        if self._state.phase is Phase.STOPPED or is_refused or is_cancelled:
            client.directory.discard()
        else:
            say(*self._state.problems, f"its log is in {client.directory.path}")
        if is_cancelled:
            return INTERRUPTED if stops.is_by_keyboard else FAILED
        if self.ready is None and is_refused:
            raise UserError(*self._state.problems)
        if self.ready is None:  # another engine would fail as well
            raise SystemExit(FAILED)
        return FINE

    def _next(self, event: AnyEvent, is_estimated: bool) -> AnyCommand | None:
        """Returns the next command. Measuring begins once the estimates and the first step are done."""
        state, comparison = self._state, self._state.comparison
        if comparison is None:
            if not state.step or not is_estimated:
                return None
            state.comparison = comparison = Comparison(self._remaining, state.preset, self._steps)
            command = comparison.proceed()
        else:
            was_over = comparison.is_over
            command = comparison.follow(event, state.preset, state.is_quiet)
            if was_over:
                return None
        if isinstance(event, Paused) and event.problem:
            return Resume()  # a nonfinite loss does not matter here
        return Stop() if comparison.is_over else command

    async def _estimate(self, ready: EngineReady) -> None:
        if self._estimates:
            return
        try:
            self._estimates = await estimates(self._config, ready, self._infos.values())
        except UserError as error:
            say(*(f"no estimates: {problem}" for problem in error.problems[-1:]))


class _Progress:
    def __init__(self) -> None:
        self._at: str | None = None
        self._throttle = Throttle()

    def report(self, event: AnyEvent, state: RunState) -> None:
        compiles = isinstance(event, PresetCompiling) and event.phase == "compile"
        if compiles or (isinstance(event, REPORTED) and state.ready):  # earlier failures are reported as a refusal
            note(event.line)
        comparison = state.comparison
        if comparison is None:
            return
        has_left = self._at != comparison.current or comparison.is_over
        if self._at and has_left and state.ready and (found := comparison.measured(self._at, 1)):
            steps = formatting.counted(found.steps, "step")
            note(f"{self._at}: {formatting.seconds(found.step_seconds)} a step, {steps}")
        self._at = None if comparison.is_over else comparison.current
        if isinstance(event, StepsDone) and comparison.done and self._throttle.is_due():
            note(in_progress(comparison))


def _print_board(session: _Session) -> None:
    rows = [clean(row) for row in session.rows]
    counted, console = session.ready.counted if session.ready else "tokens", table_console()
    shown = [*columns(counted, console.width >= board_rows.WIDE_FROM), SENT_BY_FORMULA]
    table = table_of(shown, rows, console.width, caption=CAPTION)
    wrong = [Text(f"✗ {line}") for row in rows for line in board_rows.problems([row])]
    dim = [Text(line, "dim") for line in board_rows.all_caveats(rows)]
    console.print(table, *wrong, *dim, printable(verdict(rows, devices(session.ready))), sep="\n")
