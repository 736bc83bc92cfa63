"""Plan: the run's model on a slice that nobody has to hold, every preset by formula and then by the TPU compiler."""

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import DataTable, Input, Label
from textual.worker import Worker

from ...engine.base.invalid import Invalid
from ...engine.planning import tpu_compiler
from ...engine.planning.ranking import Board, Row, ranked, recommendation
from ...engine.spec.checks import problems_of
from ...engine.spec.config import RunConfig
from ...engine.spec.topology import load_topology
from ..client.planner import Compiling, Planner
from ..state import board_rows
from ..state.run_state import RunState
from ..terminal.clean import clean, printable
from ..widgets.lines import Lines, entitle
from ..widgets.paragraphs import Paragraphs
from ..widgets.row_details import RowDetails
from ..widgets.rows import Rows
from .run_screen import RunScreen

SLICES = ("v5e:4x4", "v5p:4x4x4", "v6e:16x16")
NICE = 10
"""The training beside it has the cores first."""
WIDE = 110
"""Columns from which a row says what it sends and how far the estimate was off."""


class PlanScreen(RunScreen):
    HELP = """\
## Plan

This model on a slice of TPUs that you need not hold: **t** names one, such as `v5e:4x4`, with the size of the global
batch; **enter** begins. Every preset is estimated at once, and then compiled by the TPU compiler itself, what looks
best first, beside the training and also while another view is up. Presets that need more than twice the memory by
formula are not compiled. Times are a roofline: nothing is measured. **f** plans the best other meshes of the slice,
too.

**k** cancels the compilation that goes on, **K** all that are left. `shardtui plan` gives the same without a run.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "slice", "Slice"),
        ("f", "find", "Find meshes"),
        ("k", "skip", "Cancel one"),
        ("K", "skip_all", "Cancel all"),
        Binding("escape", "leave", "To the table", show=False),
    ]

    def body(self) -> Iterable[Widget]:
        yield Horizontal(
            Label("slice"),
            Input(SLICES[0], id="topology", compact=True, suggester=SuggestFromList(SLICES), max_length=64),
            Label("batch"),
            Input(id="batch", compact=True, max_length=9),
            Lines(id="progress"),
        )
        self.table = Rows(cursor_type="row", zebra_stripes=True)
        yield self.table
        yield Paragraphs()
        yield RowDetails()

    def on_mount(self) -> None:
        self.planner: Planner | None = None
        self.worker: Worker[None] | None = None
        self.board: Board | None = None
        self.rows: list[Row] = []
        """As they stand in the table."""
        self.cancels = False
        """A compilation goes on, which the footer's keys can cancel."""
        self.said = f"t: name a slice, {SLICES[0]} say"
        entitle(self.table, "presets")
        entitle(self.query_one(RowDetails), "preset")
        self.set_interval(1.0, self.tick)

    def show_state(self, state: RunState) -> None:
        was_known = self.state.config
        super().show_state(state)
        batch = self.query_one("#batch", Input)
        if state.config and not was_known and not batch.value:
            batch.value = str(state.config.training.batch_size)
        if state.watched and not self.query_one("#topology", Input).disabled:
            self.query(Input).set(disabled=True)
            self.refresh_bindings()
            self.complain([f"{state.watched.refusal}; what its model is made of is not known here"])
        self.show_progress()

    @on(Input.Submitted)
    def plan(self) -> None:
        self.begin(searches=False)

    def action_find(self) -> None:
        self.begin(searches=True)

    def begin(self, searches: bool) -> None:
        """What cannot be stays in its field, and so do the next keys: in the table they are keys of the view."""
        try:
            config, topology = self.asked()
        except Invalid as error:
            self.complain(error.problems)
            if not isinstance(self.focused, Input):
                self.query_one("#topology", Input).focus()
            return
        self.table.focus()
        self.planner = Planner(config, topology, (), compiles=True, searches=searches, nice=NICE)
        self.said = "estimating …"
        self.show_progress()
        self.worker = self.follow(self.planner, config)

    def asked(self) -> tuple[RunConfig, str]:
        """Raises Invalid with every problem."""
        problems: list[str] = []
        config, batch = self.state.config, self.query_one("#batch", Input).value.strip()
        topology = self.query_one("#topology", Input).value.strip()
        if config is None:
            raise Invalid("the run has not begun yet")
        try:
            load_topology(topology)
        except Invalid as error:
            problems += error.problems
        if batch.isdecimal():
            training = msgspec.structs.replace(config.training, batch_size=int(batch))
            config = msgspec.structs.replace(config, training=training)
            problems += problems_of(config)
        else:
            problems.append(f"batch {batch!r}: a number of sequences")
        if problems:
            raise Invalid(*problems)
        return config, topology

    @work(exclusive=True)
    async def follow(self, planner: Planner, config: RunConfig) -> None:
        """Goes on while another view is up. Where it is cancelled, also by the end of the UI, the planner kills what it
        has started."""
        try:
            async for board in planner.boards():
                self.show_board(clean(board), config)
        except Invalid as error:
            self.complain(error.problems)
        else:
            self.said = "compiled" if tpu_compiler.is_installed() else "by formula only"

    def show_board(self, board: Board, config: RunConfig) -> None:
        self.board = board
        entitle(self.table, f"{board.model} on {board.topology}", f"batches of {config.batch}")
        self.fill()
        texts = [(f"→ {recommendation(board.rows, board.topology)}", "bold")]
        if not tpu_compiler.is_installed():
            texts.append((tpu_compiler.NO_COMPILER, "$warning"))
        self.query_one(Paragraphs).show_texts(texts)
        self.show_progress()

    def fill(self) -> None:
        """The rows, with the cursor on the preset that it was on; on the first row it stays there."""
        if self.board is None:
            return
        table, before = self.table, self.selected if self.table.cursor_row else None
        self.rows = ranked(self.board.rows)
        table.clear(columns=True)
        is_wide = self.size.width >= WIDE
        columns = WIDE_COLUMNS if is_wide else COLUMNS
        table.add_columns(*(_right(name) if name in FIGURES else Text(name) for name in columns))
        compiling = self.planner.compiling.preset if self.planner and self.planner.compiling else None
        for row in self.rows:
            table.add_row(*_cells(row, is_wide, row.preset == compiling))
        if before:
            names = [row.preset for row in self.rows]
            table.move_cursor(row=names.index(before.preset) if before.preset in names else 0)
        self.show_details()

    @property
    def selected(self) -> Row | None:
        index = self.table.cursor_row
        return self.rows[index] if 0 <= index < len(self.rows) else None

    @on(DataTable.RowHighlighted)
    def show_details(self) -> None:
        self.query_one(RowDetails).show_row(self.selected)

    def on_resize(self) -> None:
        if self.table.columns and (len(self.table.columns) == len(WIDE_COLUMNS)) != (self.size.width >= WIDE):
            self.fill()

    def tick(self) -> None:
        """Only the seconds of a compilation pass without a new board."""
        if self.is_current and self.planner and self.planner.compiling:
            self.show_progress()

    def show_progress(self) -> None:
        compiling = self.planner.compiling if self.planner else None
        text = in_words(compiling) if compiling else self.said
        self.query_one("#progress", Lines).show([Content.styled(text, "$warning" if compiling else "$foreground 60%")])
        if bool(compiling) != self.cancels:
            self.cancels = bool(compiling)
            self.refresh_bindings()

    def complain(self, problems: Sequence[str]) -> None:
        self.said = "not planned"
        self.query_one(Paragraphs).show_texts(
            [(printable(problem.removeprefix("--")), "$error") for problem in problems]
        )
        self.show_progress()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is cancelled has to go on, and what is planned has to be known."""
        if action in ("skip", "skip_all"):
            return self.is_mounted and self.cancels
        if action in ("slice", "find"):
            return not (self.is_mounted and self.state.watched)
        return True

    def action_slice(self) -> None:
        self.query_one("#topology", Input).focus()

    def action_leave(self) -> None:
        self.table.focus()

    def action_skip(self) -> None:
        if self.planner:
            self.planner.cancel()

    def action_skip_all(self) -> None:
        if self.worker:
            self.worker.cancel()

    @on(Worker.StateChanged)
    def say_how_it_ended(self) -> None:
        """Not of a worker whose place another one has taken."""
        if self.worker is None or not self.worker.is_finished:
            return
        if self.worker.is_cancelled:
            self.said = "cancelled"
        self.fill()
        self.show_progress()


def in_words(compiling: Compiling) -> str:
    """`compiling fsdp-tp2, 34 s, 2 of 6`"""
    seconds = max(0, int(time.monotonic() - compiling.began))
    return f"compiling {printable(compiling.preset)}, {seconds} s, {compiling.number} of {compiling.count}"


COLUMNS = ("preset", "verdict", "peak", "a step", "FLOP util", "bound by", "from")
WIDE_COLUMNS = (*COLUMNS, "tokens/s", "sent a step", "formula: peak", "sent")
FIGURES = ("peak", "a step", "FLOP util", "tokens/s", "formula: peak", "sent")


def _cells(row: Row, is_wide: bool, is_compiling: bool) -> list[Text]:
    cells = [
        Text(row.preset, "bold"),
        Text(
            board_rows.short_verdict(row),
            {"fits": "green", "too large": "yellow", "not known": "dim", "infeasible": "dim"}[row.verdict],
        ),
        _right(board_rows.held(row) if is_wide else board_rows.peak(row)),
        _right(board_rows.step_time(row)),
        _right(board_rows.utilisation(row)),
        Text(board_rows.bound(row)),
        Text("compiling" if is_compiling else board_rows.source(row), "dim"),
    ]
    if is_wide:
        errors = board_rows.errors(row)
        cells += [
            _right(board_rows.tokens_rate(row)),
            Text(", ".join(board_rows.most_sent(row))),
            _right(board_rows.percent(errors.peak) if errors else ""),
            _right(board_rows.percent(errors.sent) if errors and errors.sent is not None else ""),
        ]
    return cells


def _right(text: str) -> Text:
    return Text(text, justify="right")
