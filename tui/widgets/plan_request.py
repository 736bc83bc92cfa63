"""The line in which the user requests a plan: a slice, which the next run suggests, a batch size, and the progress."""

import time
from contextlib import suppress
from pathlib import Path

import msgspec
from textual.containers import Horizontal
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label

from ...engine.base import formatting
from ...engine.base.atomic_write import write_atomically
from ...engine.base.directories import state_directory
from ...engine.base.output import printable
from ...engine.base.untrusted import read_text
from ...engine.base.user_error import UserError, noting, refuse
from ...engine.planning import compilers
from ...engine.spec.checks import problems_of
from ...engine.spec.config import RunConfig
from ...engine.spec.topology import load_topology
from ..client.planner import Planner
from .lines import Lines

EXAMPLE_SLICES = ("v5e:4x4", "v5p:4x4x4", "v6e:16x16", "h100:4x8")
LAST_SLICE = "last-slice"
"""File of the slice that was planned last."""


class PlanRequest(Horizontal):
    """The fields of a plan, and its progress."""

    def __init__(self) -> None:
        slices = SuggestFromList(EXAMPLE_SLICES)
        super().__init__(
            Label("slice"),
            Input(last_slice() or EXAMPLE_SLICES[0], id="topology", compact=True, suggester=slices, max_length=64),
            Label("batch"),
            Input(id="batch", compact=True, max_length=9),
            Lines(id="progress"),
        )

    def focus_slice(self) -> None:
        self.query_one("#topology", Input).focus()

    def suggest_batch(self, sequences: int) -> None:
        batch = self.query_one("#batch", Input)
        batch.value = batch.value or str(sequences)

    def show_progress(self, planner: Planner | None, status: str) -> None:
        """Shows what the plan compiles, or else the `status`."""
        text, style = status, "$text-muted"
        if planner and planner.compiling:
            text, style = progress_text(planner), "$warning"
        self.query_one("#progress", Lines).show([Content.styled(text, style)])

    def read(self, config: RunConfig | None) -> tuple[RunConfig, str]:
        """Returns the config with the typed batch size, and the topology. Raises UserError with every problem."""
        batch, topology = (self.query_one(name, Input).value.strip() for name in ("#batch", "#topology"))
        problems: list[str] = []
        if config is None:
            raise UserError("the run has not started yet")
        with noting(problems):
            load_topology(topology)
        if batch.isdecimal():
            training = msgspec.structs.replace(config.training, batch_size=int(batch))
            config = msgspec.structs.replace(config, training=training)
            problems += problems_of(config)
        else:
            problems.append(f"batch {batch!r}: must be a number of sequences")
        refuse(problems)
        return config, topology


def progress_text(planner: Planner) -> str:
    """Returns what a plan compiles, or the time left, if it is known: `compiling 2 of 6, ≈ 3 min 20 s left`.

    Both do not fit into a line of 80 columns.
    """
    compiling, left = planner.compiling, planner.seconds_left
    assert compiling is not None
    count, seconds = f"{compiling.number} of {compiling.count}", max(0, int(time.monotonic() - compiling.began))
    if planner.is_waiting:
        return f"waiting for other plans, {seconds} s, {count}"
    if left is None:
        return f"compiling {printable(compiling.preset)}, {seconds} s, {count}"
    rest = f"{formatting.seconds(left)} left"
    return f"compiling, at most {rest}" if planner.search else f"compiling {count}, ≈ {rest}"


def ended_text(planner: Planner) -> str:
    if planner.compiles:
        return "compiled"
    board = planner.board
    missing = compilers.missing(load_topology(board.topology)) if board else None
    hint = "" if missing else ": t, then enter compiles"
    return f"traced only{hint}"


def last_slice() -> str:
    """Returns the slice that was planned last; empty if there is none, or this version does not know it."""
    with suppress(UserError):
        name = read_text(_path()).strip()
        load_topology(name)
        return name
    return ""


def remember_slice(name: str) -> None:
    with suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_path(), name.encode("ascii"))


def _path() -> Path:
    return state_directory() / LAST_SLICE
