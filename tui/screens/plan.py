"""Plan: the run's model on a TPU slice that need not exist: each preset by formula, then compiled for the slice."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable, Input
from textual.worker import Worker

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.planning import compilers
from ...engine.planning.goal import in_order
from ...engine.planning.ranking import Board, Row
from ...engine.spec.config import RunConfig
from ...engine.spec.search import Goal, SearchRequest
from ...engine.spec.topology import load_topology
from ..bindings import identified
from ..client.planner import Planner
from ..state.recommendation import recommendation
from ..state.run_state import RunState
from ..terminal.clean import clean
from ..widgets.lines import Paragraphs, set_titles
from ..widgets.plan_request import EXAMPLE_SLICES, PlanRequest, ended_text, remember_slice
from ..widgets.plan_table import PlanTable
from ..widgets.row_details import RowDetails
from ..widgets.table import Table
from .memory import MemoryScreen
from .predicted import PredictedScreen
from .run_screen import RunScreen

NICENESS = 10
"""Niceness of the compiler's process, so that training gets the cores first."""


class PlanScreen(RunScreen):
    """The fields of a plan, a table of the presets, the recommendation and the details of the selected preset."""

    HELP = """\
## Plan

This model on TPUs or GPUs that you need not have: press **t** to choose a slice, such as `v5e:4x4`, several, such as
`2*v5e:4x4`, or hosts × GPUs, such as `h100:4x8`, and the global batch size, then **enter**. All presets are estimated
at once, then compiled by XLA's compiler for these devices, the most promising first, while training continues and
other views are open. Presets that need more than twice the memory by formula are not compiled. Times are a roofline,
not measured.

**n** chooses for you: it estimates meshes, rules, remat and micro-batches for this batch, then compiles the most
promising ones, for ten minutes at most, and says which trains most tokens per second. `shardtui plan --search` also
chooses the batch, and writes the preset as a file.

**enter** on a compiled preset predicts where the time of a step goes on TPUs, by the compiler's schedule and its
estimates: bars, operations and, on **t**, a timeline. **m** there shows what fills the memory: its curve over the step
and the largest buffers at the peak. **enter** on a preset of a model of your own that is not compiled yet shows that by
the trace of its step. **enter** on a preset that is too large searches what makes it fit: the largest batch, more
micro-batches and remat policies, each compiled. **escape** shows the presets again.

**k** cancels the current compilation, **K** all remaining ones. `shardtui plan` prints the same without a run.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "plan",
        [
            ("t", "slice", "Slice"),
            ("n", "find", "Find meshes"),
            ("k", "skip", "Cancel one"),
            ("K", "skip_all", "Cancel all"),
            Binding("escape", "leave", "Back", show=False),
        ],
    )

    def __init__(self) -> None:
        super().__init__()
        self.planner: Planner | None = None
        self.before: list[Planner] = []
        """The plans from which searches for what makes a preset fit began, the latest last."""
        self.worker: Worker[None] | None = None
        self.board: Board | None = None
        self.can_cancel = False
        """Whether the footer enables the keys that cancel: a preset was being compiled when it was last drawn."""
        self.status = f"press t to choose a slice, e.g. {EXAMPLE_SLICES[0]}"

    def body(self) -> Iterable[Widget]:
        self.request = PlanRequest()
        yield self.request
        self.table = PlanTable()
        yield self.table
        yield Paragraphs(id="hints")
        yield RowDetails()

    def on_mount(self) -> None:
        set_titles(self.table.rows, "presets")
        set_titles(self.query_one(RowDetails), "preset")
        self.set_interval(1.0, self.tick)

    def show_state(self, state: RunState) -> None:
        known_before = self.state.config
        super().show_state(state)
        if state.config and not known_before:
            self.request.suggest_batch(state.config.training.batch_size)
        if state.watched and not self.request.disabled:
            self.request.disabled = True
            self.refresh_bindings()
            self.show_problems([f"{state.watched.refusal}; its model is not known here"])
        self.show_progress()
        self.estimate()

    @on(Input.Submitted)
    def plan(self) -> None:
        self.start_plan()

    def estimate(self) -> None:
        """Estimates the presets for the slice that was planned last: the view of a live run opens with figures."""
        if self.planner is None and self.state.preset and self.state.is_live and self.state.config:
            self.start_plan(compiles=False)

    def action_find(self) -> None:
        self.start_plan(searches=True)

    def start_plan(self, searches: bool = False, compiles: bool = True) -> None:
        """Starts a plan. Invalid input keeps the focus in its field: in the table the next keys would be commands."""
        try:
            config, topology = self.request.read(self.state.config)
        except UserError as error:
            self.show_problems(error.problems)
            if not isinstance(self.focused, Input):
                self.request.focus_slice()
            return
        self.table.rows.focus()
        search = SearchRequest(kept=["batch_size"]) if searches else None
        self.before = []
        if compiles:
            remember_slice(topology)
        self.start(Planner(config, topology, (), compiles=compiles, nice=NICENESS, search=search))

    def start(self, planner: Planner) -> None:
        self.planner = planner
        self.status = "estimating …"
        self.show_progress()
        self.worker = self.follow(planner)

    @work(exclusive=True)
    async def follow(self, planner: Planner) -> None:
        """Shows each board as it arrives, also while another view is active.

        If it is cancelled, by a key or because the UI ends, the planner kills the processes that it has started.
        """
        try:
            async for board in planner.boards():
                self.show_board(clean(board), planner.config)
        except UserError as error:
            self.show_problems(error.problems)
        else:
            self.status = ended_text(planner)

    def show_board(self, board: Board, config: RunConfig) -> None:
        """Shows the ranked presets and the recommendation; `config` has the batch that was planned."""
        self.board = board
        topology = load_topology(board.topology)
        set_titles(self.table.rows, f"{board.model} on {topology.title}", f"batch of {config.batch}")
        self.fill()
        texts = [(f"→ {recommendation(board.rows, topology.title, self.goal)}", "bold")]
        if problem := compilers.missing(topology):
            texts.append((problem, "$warning"))
        self.query_one("#hints", Paragraphs).show_texts(texts)
        self.show_progress()

    @property
    def goal(self) -> Goal | None:
        """Of the search that is shown; None if a plan is shown."""
        return self.planner.search.goal if self.planner and self.planner.search else None

    def fill(self) -> None:
        if self.board is None:
            return
        compiling = [each.preset for each in self.planner.running] if self.planner else []
        self.table.show_ranking(in_order(self.board.rows, self.goal), compiling)
        self.show_details()

    @on(DataTable.RowSelected)
    def predict(self) -> None:
        """Opens where the time of a step goes under the selected preset, or what makes it fit; if it was only traced,
        what fills the memory."""
        row, planner = self.table.selected_row, self.planner
        if row is None or planner is None or planner.board is None:
            return
        if row.verdict == "too large":
            self.make_fit(row.title, planner)
            return
        if row.compiled is None:
            self.show_traced(row)
            return
        breakdown = partial(planner.breakdown, row.title)
        self.app.push_screen(PredictedScreen(row.title, row.compiled, breakdown))  # pyright: ignore[reportUnknownMemberType]

    def show_traced(self, row: Row) -> None:
        """Opens what fills the memory by the trace of a step that is not compiled, if there is one."""
        cost = row.estimate
        if cost and cost.at_peak:
            self.app.push_screen(MemoryScreen(row.title, cost.at_peak, cost.peak_buffers, None))  # pyright: ignore[reportUnknownMemberType]
        else:
            self.notify("compile a preset first: t, then enter", markup=False)

    def make_fit(self, title: str, planner: Planner) -> None:
        """Searches what makes a preset fit that is too large, unless other programs are being compiled."""
        config, topology, preset = planner.subject(title)
        problem = compilers.missing(load_topology(topology))
        if planner.compiling:
            problem = "the plan is still being compiled: wait, or cancel it with K"
        if problem:
            self.notify(problem, markup=False)
            return
        self.before.append(planner)
        search = SearchRequest(is_mesh_fixed=True)
        self.start(Planner(config, topology, (preset,), compiles=True, nice=NICENESS, search=search))

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        self.query_one(RowDetails).show_row(self.table.selected_row)

    def on_resize(self) -> None:
        if not self.table.fits_screen:
            self.fill()

    def tick(self) -> None:
        if self.is_current and self.planner and self.planner.compiling:
            self.show_progress()

    def show_progress(self) -> None:
        """Shows what is being compiled, or the status of the plan, and enables the cancel keys accordingly."""
        compiling = self.planner if self.planner and self.planner.compiling else None
        self.request.show_progress(compiling, self.status)
        if bool(compiling) != self.can_cancel:
            self.can_cancel = bool(compiling)
            self.refresh_bindings()

    def show_problems(self, problems: Sequence[str]) -> None:
        self.status = "not planned"
        self.query_one("#hints", Paragraphs).show_texts(
            [(printable(problem.removeprefix("--")), "$error") for problem in problems]
        )
        self.show_progress()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the cancel keys while nothing compiles, and planning in a watched run, whose model is not known."""
        if action in ("skip", "skip_all"):
            return self.is_mounted and self.can_cancel
        if action in ("slice", "find"):
            return not (self.is_mounted and self.state.watched)
        return True

    def action_slice(self) -> None:
        self.request.focus_slice()

    def action_leave(self) -> None:
        """Leaves a field for the table, or what makes a preset fit for the plan before."""
        if self.focused is not self.table.rows or not self.before:
            self.table.rows.focus()
            return
        if self.worker:
            self.worker.cancel()
            self.worker = None
        self.planner = self.before.pop()
        self.status = ended_text(self.planner)
        if self.planner.board:
            self.show_board(clean(self.planner.board), self.planner.config)

    def action_skip(self) -> None:
        if self.planner:
            self.planner.cancel()

    def action_skip_all(self) -> None:
        if self.worker:
            self.worker.cancel()

    @on(Worker.StateChanged)
    def show_end(self) -> None:
        """Shows that the plan is complete or cancelled; ignores a worker that a newer plan has replaced."""
        if self.worker is None or not self.worker.is_finished:
            return
        if self.worker.is_cancelled:
            self.status = "cancelled"
        self.fill()
        self.show_progress()
