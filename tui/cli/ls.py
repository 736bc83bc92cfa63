"""`shardtui ls` and `shardtui presets`: tables for people, JSON for programs."""

from contextlib import suppress

import msgspec
from msgspec import Struct
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import RunConfig
from ...engine.wire.descriptions import PresetListing
from ...engine.wire.event_log import LogReader
from ...engine.wire.run_directory import RunDirectory, all_runs, state_home
from ..client.engine_client import ask_engine
from ..state.run_state import RunState
from ..terminal.clean import clean, json_line, printable, warn
from ..terminal.plain_console import plain_console


class RunInfo(Struct, frozen=True, kw_only=True):
    run: str
    state: str
    model: str
    preset: str
    step: int
    pid: int | None
    """None where no process trains it, or one of another host or container."""
    directory: str


class RunListing(Struct, frozen=True, kw_only=True):
    """What `shardtui ls --json` prints."""

    schema: int = 1
    runs: list[RunInfo]


def list_runs(as_json: bool) -> None:
    runs: list[RunInfo] = []
    for directory in all_runs():
        try:
            runs.append(_run_info(directory))
        except Invalid as error:
            warn(*error.problems)
    if as_json:
        print(json_line(RunListing(runs=runs)))
        return
    if not runs:
        print(printable(f"no runs in {state_home()}: start one with `shardtui`"))
        return
    table = Table("run", "state", "model", "preset", Column("step", justify="right"), "process")
    for run in map(clean, runs):
        table.add_row(run.run, run.state, run.model, run.preset, f"{run.step:,}", str(run.pid or "–"))
    plain_console().print(table)


def list_presets(config: RunConfig, as_json: bool) -> None:
    listing = msgspec.json.decode(ask_engine("presets", config), type=PresetListing)
    if as_json:
        print(json_line(listing))
        return
    listing = clean(listing)
    table = Table("", "preset", f"mesh on {listing.devices}", "summary", title=f"presets for {config.model_name}")
    for info in listing.presets:
        about = f"{info.summary}: {info.pipeline.words}" if info.pipeline else info.summary
        why = about if info.fits else "\n".join(info.problems)
        table.add_row("✓" if info.fits else "✗", Text(info.name), figures.axes(info.mesh), Text(why))
    plain_console().print(table)
    warn(*listing.problems)


def _run_info(directory: RunDirectory) -> RunInfo:
    state = RunState()
    with suppress(FileNotFoundError):
        for events in LogReader(directory.events).read():
            for event in events:
                state.apply(event)
    holder = directory.holder()
    about = directory.about
    return RunInfo(
        run=directory.name,
        state=state.phase if state.is_over or (holder and holder.is_alive) else "crashed",
        model=about.model_name,
        preset=state.preset or about.preset,
        step=state.step,
        pid=holder.pid if holder and holder.is_here else None,
        directory=str(directory.path),
    )
