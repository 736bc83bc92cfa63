"""`shardtui ls` and `shardtui presets`: tables for people, JSON for programs."""

import sys

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..engine import figures
from ..engine.config import RunConfig
from ..engine.event_log import LogReader
from ..engine.protocol import PresetListing, encode_json
from ..engine.run_directory import RunDirectory, all_runs, state_home
from .engine_client import ask_engine
from .run_state import RunState


class RunInfo(Struct, frozen=True, kw_only=True):
    run: str
    state: str
    model: str
    preset: str
    step: int
    pid: int | None
    directory: str


class RunListing(Struct, frozen=True, kw_only=True):
    """What `shardtui ls --json` prints."""

    schema: int = 1
    runs: list[RunInfo]


def list_runs(as_json: bool) -> None:
    runs = [_run_info(directory) for directory in all_runs()]
    if as_json:
        print(encode_json(RunListing(runs=runs)).decode())
        return
    if not runs:
        print(f"no runs in {state_home()}: start one with `shardtui`")
        return
    table = Table("run", "state", "model", "preset", Column("step", justify="right"), "process")
    for run in runs:
        table.add_row(run.run, run.state, run.model, run.preset, f"{run.step:,}", str(run.pid or "–"))
    Console().print(table)


def list_presets(config: RunConfig, as_json: bool) -> None:
    answer = ask_engine("presets", config)
    if as_json:
        print(answer.decode(), end="")
        return
    listing = msgspec.json.decode(answer, type=PresetListing)
    table = Table("", "preset", f"mesh on {listing.devices}", "summary", title=f"presets for {config.model_name}")
    for info in listing.presets:
        why = info.summary if info.fits else "\n".join(info.problems)
        table.add_row("✓" if info.fits else "✗", Text(info.name), figures.axes(info.mesh), Text(why))
    Console().print(table)
    for problem in listing.problems:
        print(f"shardtui: {problem}", file=sys.stderr)


def _run_info(directory: RunDirectory) -> RunInfo:
    state = RunState()
    if directory.events.exists():
        for events in LogReader(directory.events).read():
            for event in events:
                state.apply(event)
    pid = directory.holder()
    config = directory.config
    return RunInfo(
        run=directory.name,
        state=state.phase if pid or state.is_over else "crashed",
        model=config.model_name,
        preset=state.preset or config.preset,
        step=state.step,
        pid=pid,
        directory=str(directory.path),
    )
