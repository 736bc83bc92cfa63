"""Plan: the run's model on a TPU slice that need not exist: each preset traced, then compiled."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
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
from ...engine.planning.goal import Goal, SearchRequest, ranked
from ...engine.planning.ranking import Row
from ...engine.spec.topology import load_topology
from ..bindings import identified
from ..client.engine_process import NICENESS
from ..client.planner import Planner
from ..state.board_rows import WIDE_FROM, columns, counted_in
from ..state.recommendation import recommendation
from ..state.run_state import RunState
from ..terminal.clean import clean
from ..widgets.lines import StyledText, set_titles
from ..widgets.plan_request import EXAMPLE_SLICES, PlanRequest, ended_text, remember_slice
from ..widgets.preset_board import PresetBoard
from .memory import MemoryScreen
from .predicted import PredictedScreen
from .run_screen import RunScreen


class PlanScreen(RunScreen):
    """The fields of a plan, a table of the presets, the recommendation and the details of the selected preset."""

    HELP = """\
## Plan

This model on TPUs or GPUs that you need not have: press **t** to choose a slice, such as `v5e:4x4`, several, such as
`2*v5e:4x4`, or hosts × GPUs, such as `h100:4x8`, and the global batch size, then **enter**. Each preset's step is
*traced*, which takes about a second for several. Then it is *compiled* by XLA's compiler for these devices, the most
promising first, while training continues and other views are open; presets that need more than twice the memory are
not. Until you plan, and without a compiler, traces are all. Times are a roofline, not measured.

**n** chooses for you: it estimates meshes, rules, remat and micro-batches for this batch, then compiles the most
promising ones, for ten minutes at most, and says which trains most tokens per second. `shardtui plan --search` also
chooses the batch, and writes the preset as a file.

**enter** on a compiled preset predicts where the time of a step goes on TPUs, by the compiler's schedule and its
estimates: bars, operations and, on **t**, a timeline. **m** there shows what fills the memory: its curve over the step
and the largest buffers at the peak; on a traced preset **enter** does. **enter** on a preset that is too large searches
what makes it fit: the largest batch, more micro-batches and remat policies, each compiled. **escape** shows the presets
again.

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
        self.plans: list[Planner] = []
        """The plan that was requested, then the searches for what makes a preset of the one before fit."""
        self.worker: Worker[None] | None = None
        self.status = f"press t to choose a slice, e.g. {EXAMPLE_SLICES[0]}"

    @property
    def planner(self) -> Planner | None:
        return self.plans[-1] if self.plans else None

    def on_mount(self) -> None:
        self.set_interval(1.0, self.show_progress)

    def on_resize(self) -> None:
        self.show_rows()

    def body(self) -> Iterable[Widget]:
        self.request = PlanRequest()
        yield self.request
        self.board = PresetBoard()
        yield self.board

    def show_state(self, state: RunState) -> None:
        known_before = self.state.config
        super().show_state(state)
        if state.config and not known_before:
            self.request.suggest_batch(state.config.training.batch_size)
        if state.watched and not self.request.disabled:
            self.request.disabled = True
            self.show_problems([f"{state.watched.refusal}; its model is not known here"])
        self.show_progress()
        self.estimate()

    @on(Input.Submitted)
    def plan(self) -> None:
        self.start_plan()

    def estimate(self) -> None:
        """Estimates the presets for the slice that was planned last: the view of a live run opens with figures."""
        is_typing = isinstance(self.focused, Input)
        if self.planner is None and self.state.preset and self.state.is_live and not is_typing:
            with suppress(UserError):  # the user has left a slice that is half typed
                config, topology = self.request.read(self.state.config)
                self.start(Planner(config, topology, (), compiles=False, nice=NICENESS))

    def action_find(self) -> None:
        self.start_plan(searches=True)

    def start_plan(self, searches: bool = False) -> None:
        """Starts a plan. Invalid input keeps the focus in its field: in the table the next keys would be commands."""
        try:
            config, topology = self.request.read(self.state.config)
        except UserError as error:
            self.show_problems(error.problems)
            if not isinstance(self.focused, Input):
                self.request.focus_slice()
            return
        self.board.table.rows.focus()
        remember_slice(topology)
        search = SearchRequest(kept=["batch_size"]) if searches else None
        self.plans = []
        self.start(Planner(config, topology, (), compiles=True, nice=NICENESS, search=search))

    def start(self, planner: Planner) -> None:
        self.plans.append(planner)
        self.status = "tracing …"
        self.show_progress()
        self.worker = self.follow(planner)

    @work(exclusive=True)
    async def follow(self, planner: Planner) -> None:
        """Shows each board as it arrives, also in another view. If it is cancelled, the planner kills its processes."""
        try:
            async for _ in planner.boards():
                self.show_plan()
                self.show_progress()
        except UserError as error:
            self.show_problems(error.problems)
        else:
            self.status = ended_text(planner)

    @on(DataTable.RowSelected)
    def predict(self) -> None:
        """Opens where the time of a step goes under the selected preset, or what makes it fit; if it was only traced,
        what fills the memory."""
        row, planner = self.board.selected_row, self.planner
        if row is None or planner is None or planner.board is None:
            return
        if row.verdict == "too large":
            try:
                self.start(fitting(planner, row.title))
            except UserError as error:
                self.notify(str(error), markup=False)
        elif row.compiled:
            self.app.push_screen(PredictedScreen(row.title, row.compiled, partial(planner.breakdown, row.title)))  # pyright: ignore[reportUnknownMemberType]
        elif (cost := row.estimate) and cost.at_peak:
            self.app.push_screen(MemoryScreen(row.title, cost.at_peak, cost.peak_buffers, None))  # pyright: ignore[reportUnknownMemberType]
        else:
            self.notify("compile a preset first: t, then enter", markup=False)

    def show_plan(self) -> None:
        """Shows the ranked presets and the recommendation, once there are estimates."""
        self.show_rows()
        if (planner := self.planner) and planner.board:
            self.board.hints.show_texts(hints(list(self.board.rows.values()), planner.board.topology, planner.goal))

    def show_rows(self) -> None:
        planner = self.planner
        if planner is None or planner.board is None:
            return
        board, compiling = clean(planner.board), [each.preset for each in planner.running]
        title = f"{board.model} on {load_topology(board.topology).title}"
        set_titles(self.board.table.rows, title, f"batch of {planner.config.batch}")
        shown = columns(self.size.width >= WIDE_FROM, compiling, counted_in(board.rows))
        self.board.show_rows(shown, ranked(board.rows, planner.goal))

    def show_progress(self) -> None:
        """Shows what is being compiled, or the status of the plan, and enables the cancel keys accordingly."""
        self.request.show_progress(self.planner, self.status)
        self.refresh_bindings()

    def show_problems(self, problems: Sequence[str]) -> None:
        self.status = "not planned"
        self.board.hints.show_texts([(printable(problem.removeprefix("--")), "$error") for problem in problems])
        self.show_progress()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the cancel keys while nothing compiles, and planning in a watched run, whose model is not known."""
        if action in ("skip", "skip_all"):
            return bool(self.planner and self.planner.compiling)
        return action not in ("slice", "find") or not (self.is_mounted and self.state.watched)

    def action_slice(self) -> None:
        self.request.focus_slice()

    def action_leave(self) -> None:
        """Leaves a field for the table, or what makes a preset fit for the plan before."""
        if self.focused is not self.board.table.rows or len(self.plans) < 2:
            self.board.table.rows.focus()
            return
        if self.worker:
            self.worker.cancel()
            self.worker = None
        self.plans.pop()
        self.status = ended_text(self.plans[-1])
        self.show_plan()
        self.show_progress()

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
        self.show_rows()
        self.show_progress()


def fitting(planner: Planner, title: str) -> Planner:
    """Returns the search for what makes a preset of a plan fit. Raises UserError if nothing can be compiled now."""
    config, topology, preset = planner.subject(title)
    if planner.compiling:
        raise UserError("the plan is still being compiled: wait, or cancel it with K")
    if problem := compilers.missing(load_topology(topology)):
        raise UserError(problem)
    search = SearchRequest(is_mesh_fixed=True)
    return Planner(config, topology, (preset,), compiles=True, nice=NICENESS, search=search)


def hints(rows: Sequence[Row], slice_name: str, goal: Goal | None) -> list[StyledText]:
    """Returns which row to choose, and what to install if none can be compiled for this slice."""
    topology = load_topology(slice_name)
    problem = compilers.missing(topology)
    advice = f"→ {recommendation(rows, topology.title, goal)}"
    return [(advice, "bold"), *([(problem, "$warning")] if problem else [])]
