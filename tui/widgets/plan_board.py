"""The board of a plan: a table of the presets, the recommendation, and the details of the preset under the cursor."""

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable

from ...engine.planning import compilers
from ...engine.planning.goal import ranked
from ...engine.planning.ranking import Row
from ...engine.spec.topology import load_topology
from ..client.planner import Planner
from ..state.board_rows import WIDE_FROM, columns
from ..state.recommendation import recommendation
from ..terminal.clean import clean
from .lines import Paragraphs, set_titles
from .row_details import RowDetails
from .table import Table


class PlanBoard(Vertical):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.hints, self.details = Table(has_full_text=False), Paragraphs(id="hints"), RowDetails()
        self.planner: Planner | None = None
        """The plan that is shown; None before the first has estimates."""
        self.rows: dict[str, Row] = {}
        """By title, best first."""

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.hints
        yield self.details

    def on_mount(self) -> None:
        set_titles(self.table.rows, "presets")
        set_titles(self.details, "preset")

    def show_plan(self, planner: Planner) -> None:
        """Shows the ranked presets and the recommendation, once there are estimates."""
        if planner.board is None:
            return
        self.planner, topology = planner, load_topology(planner.board.topology)
        set_titles(self.table.rows, f"{planner.board.model} on {topology.title}", f"batch of {planner.config.batch}")
        self.fill()
        texts = [(f"→ {recommendation(list(self.rows.values()), topology.title, planner.goal)}", "bold")]
        if problem := compilers.missing(topology):
            texts.append((problem, "$warning"))
        self.hints.show_texts(texts)

    def fill(self) -> None:
        if self.planner is None or self.planner.board is None:
            return
        board, width = clean(self.planner.board), self.screen.size.width
        self.rows = {row.title: row for row in ranked(board.rows, self.planner.goal)}
        compiling = [each.preset for each in self.planner.running]
        self.table.show_columns(columns(width >= WIDE_FROM, compiling), self.rows)
        self.show_details()

    @property
    def selected_row(self) -> Row | None:
        return self.rows.get(self.table.selected or "")

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        self.details.show_row(self.selected_row)

    def on_resize(self) -> None:
        self.fill()
