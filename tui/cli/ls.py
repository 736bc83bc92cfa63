"""`shardtui ls` and `shardtui presets`: lists of runs and presets, as tables or JSON."""

import argparse
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import RunConfig
from ...engine.wire.descriptions import PresetListing
from ...engine.wire.run_directory import RunDirectory, all_runs, state_home
from ..client.engine_client import ask_engine
from ..state.goodput import Goodput, share_words
from ..state.run_summary import RUNS, RunSummary, recorded_goodput, summarise
from ..state.step_words import pipeline_words
from ..terminal import FINE
from ..terminal.clean import clean, json_line, printable, warn
from ..terminal.plain_table import Column, figure, plain_table, table_console, table_of
from .options import add_json_option


class RunInfo(RunSummary, frozen=True, kw_only=True):
    """One run, live or ended, and its goodput."""

    goodput: Goodput
    """Where its wall time went."""


COLUMNS: Sequence[Column[RunInfo]] = (
    *RUNS,
    figure("goodput", lambda run: share_words(run.goodput)),
    Column("process", lambda run: str(run.pid or "–")),
)


class RunListing(Struct, frozen=True, kw_only=True):
    """All runs."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    runs: list[RunInfo]
    """The runs, oldest first."""


def ls_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def ls_command(options: argparse.Namespace) -> int:
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
    table_console().print(table_of(COLUMNS, map(clean, runs)))


def list_presets(config: RunConfig, as_json: bool) -> None:
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
    return RunInfo(**asdict(summary), goodput=recorded_goodput(summary))
