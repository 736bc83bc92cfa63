"""`shardtui ls` and `shardtui presets`: lists of runs and presets, as tables or JSON."""

import argparse

import msgspec
from msgspec import Struct
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import RunConfig
from ...engine.wire.descriptions import PresetListing
from ...engine.wire.run_directory import RunDirectory, all_runs, state_home
from ..client.engine_client import ask_engine
from ..state.goodput import Goodput, share_words
from ..state.pipeline_words import pipeline_words
from ..state.run_summary import recorded_goodput, summarise
from ..terminal.clean import clean, json_line, printable, warn
from ..terminal.exit_codes import FINE
from ..terminal.plain_console import table_console
from ..terminal.plain_table import plain_table, right
from .options import add_json_option


class RunInfo(Struct, frozen=True, kw_only=True):
    """One run, live or ended."""

    run: str
    """Name of the run."""
    state: str
    """`starting`, `compiling`, `training`, `switching`, `paused`, `stopped`, `failed`, or `crashed` if its process died
    without reporting why."""
    model: str
    """Name of the model."""
    preset: str
    """The preset that trains, or trained last."""
    step: int
    """Steps done."""
    pid: int | None
    """Process that trains it; null if there is none, or it runs on another host or in another container."""
    directory: str
    """Path of its files."""
    goodput: Goodput
    """Where its wall time went."""


class RunListing(Struct, frozen=True, kw_only=True):
    """All runs."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    runs: list[RunInfo]
    """The runs, oldest first."""


def ls_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `ls`."""
    add_json_option(parser)


def ls_command(options: argparse.Namespace) -> int:
    """Runs `ls`."""
    list_runs(options.json)
    return FINE


def list_runs(as_json: bool) -> None:
    """Prints the runs; warns of those that cannot be read."""
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
    table = plain_table("run", "state", "model", "preset", right("step"), right("goodput"), "process")
    for run in map(clean, runs):
        step, process = f"{run.step:,}", str(run.pid or "–")
        table.add_row(run.run, run.state, run.model, run.preset, step, share_words(run.goodput), process)
    table_console().print(table)


def list_presets(config: RunConfig, as_json: bool) -> None:
    """Prints the presets and whether each fits the devices. Raises Invalid."""
    listing = msgspec.json.decode(ask_engine("presets", config), type=PresetListing)
    if as_json:
        print(json_line(listing))
        return
    listing = clean(listing)
    table = plain_table("", "preset", f"mesh on {listing.devices}", "summary", title=f"presets for {config.model_name}")
    for info in listing.presets:
        about = f"{info.summary}: {pipeline_words(info.pipeline)}" if info.pipeline else info.summary
        why = about if info.fits else "\n".join(info.problems)
        table.add_row("✓" if info.fits else "✗", Text(info.name), figures.axes(info.mesh), Text(why))
    table_console().print(table)
    warn(*listing.problems)


def _run_info(directory: RunDirectory) -> RunInfo:
    summary = summarise(directory)
    return RunInfo(
        run=directory.name,
        state=summary.phase,
        model=summary.model,
        preset=summary.preset,
        step=summary.step,
        pid=summary.pid,
        directory=str(directory.path),
        goodput=recorded_goodput(summary),
    )
