"""A program without a run: its values, its collectives and what is likely to be wrong, each with its origin."""

import time
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Footer, Label, OptionList, Static, TabbedContent, TabPane

from ...engine.base import formatting
from ...engine.base.user_error import UserError
from ...engine.explain.explanation import CompiledProgram, Explanation
from ...engine.planning.ranking import Row
from ...engine.wire.descriptions import MeshInfo
from ...engine.wire.step_breakdown import StepBreakdown
from ..bindings import identified
from ..client.explainer import Rules
from ..state.board_rows import with_peak
from ..state.explanation_diff import numbered
from ..state.explanation_words import compiled_bytes, cost_words, differences, program_row
from ..state.origin_pages import EstimatedPage, FindingPage, Page, ValuePage
from ..state.program_findings import program_findings
from ..state.tables import ESTIMATED_COLLECTIVES, PAYLOAD, VALUES
from ..widgets.finding_list import FindingList
from ..widgets.table import Table
from .dialog import BaseScreen
from .memory import MemoryScreen
from .origin import OriginScreen
from .predicted import PredictedScreen


class ProgramScreen(BaseScreen[None]):
    """Tables of values and collectives, and the findings. They are empty until the program is explained."""

    HELP = """\
## A program of your own

**Values** has the arguments, what `checkpoint_name` names, the last value of each line of your code, and the results,
each with the mesh axes that split it and who asked for them. **Collectives** has those that the partitioner's passes
would insert, with the operation that needs each. **Lint** has what is likely to be wrong, with the codes of
`shardtui lint`.

**Enter** on a row opens its origin: the chain back to the argument, the constraint or the `shard_map` that asked for
it.

With `--topology` the first line has its cost there, **m** what fills the memory at the peak, and with `--compile`
**v** where the time goes by the compiler's schedule.

All of it is an estimate unless it says *compiled*: nothing is compiled without `--compile`.
"""
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "program",
        [
            ("1", "show('values')", "Values"),
            ("2", "show('collectives')", "Collectives"),
            ("3", "show('lint')", "Lint"),
            ("4", "show('compiled')", "Compiled"),
            ("m", "memory", "Memory"),
            ("v", "predicted", "Schedule"),
        ],
    )

    def __init__(self, program: str) -> None:
        """`program`: what is explained, `FILE.py:FUNCTION`."""
        super().__init__()
        self.program = program
        self.found: Explanation | None = None
        """None until the program is explained."""
        self.began = time.monotonic()

    def compose(self) -> ComposeResult:
        yield Label(markup=False, id="about")
        with TabbedContent():
            with TabPane("Values", id="values"):
                yield Table()
            with TabPane("Collectives", id="collectives"):
                yield Table(PAYLOAD)
            with TabPane("Lint", id="lint"):
                yield FindingList()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.clock = self.set_interval(1.0, self.show_about)
        self.show_about()
        self.action_show("values")

    def show_about(self) -> None:
        seconds = int(time.monotonic() - self.began)
        about = f"explaining … {seconds} s"
        if self.found:
            about = f"{formatting.axes(self.found.mesh) or 'no mesh'} · estimated by the partitioner's passes"
            about = " · ".join([about, *cost_words(self.found)])
        self.query_one("#about", Label).update(f"{self.program} · {about}")

    async def show_explanation(self, found: Explanation) -> None:
        """Fills the tables."""
        self.found = found
        self.clock.stop()
        self.show_about()
        self.refresh_bindings()
        values, collectives = self.query(Table)
        values.show_columns(VALUES, {label: (label, value) for label, value in numbered(found.values).items()})
        rows = {str(at): each for at, each in enumerate(found.collectives)}
        collectives.show_columns(ESTIMATED_COLLECTIVES, rows)
        values.rows.border_title = f"values: {len(found.values):,}"
        collectives.rows.border_title = f"collectives, estimated: {len(rows):,}"
        nothing = [Content.styled("✓ no findings", "$success")]
        self.query_one(FindingList).show_findings(program_findings(found), nothing)
        if found.compiled:
            text = VerticalScroll(Static(compiled_lines(found.compiled)))
            await self.query_one(TabbedContent).add_pane(TabPane("Compiled", text, id="compiled"))
            self.refresh_bindings()

    def action_show(self, pane: str) -> None:
        self.query_one(TabbedContent).active = pane
        self.set_focus(self.query(f"#{pane} Rows, #{pane} Choices, #{pane} VerticalScroll").first())  # at once

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        found, row = self.found, self.row
        match action:
            case "memory":
                return bool(row and with_peak(row))
            case "predicted":
                return bool(row and row.compiled)
            case _:
                return parameters != ("compiled",) or bool(found and found.compiled)

    @property
    def row(self) -> Row | None:
        """Its cost on the topology, if one was given and the program is explained."""
        return program_row(self.found) if self.found else None

    def action_memory(self) -> None:
        cost = with_peak(self.row) if self.row else None
        if cost and cost.at_peak:
            compiler = cost.peak_bytes if cost.basis == "compiled" else None
            self.app.push_screen(MemoryScreen(self.program, cost.at_peak, cost.peak_buffers, compiler))  # pyright: ignore[reportUnknownMemberType]

    def action_predicted(self) -> None:
        """Shows where the time of the compiled program goes, by the compiler's schedule."""
        cost = self.row and self.row.compiled
        if not cost:
            return

        async def breakdown() -> StepBreakdown:
            if cost.breakdown is None:
                raise UserError("the compiler estimates no times of this program")
            return cost.breakdown

        self.app.push_screen(PredictedScreen(self.program, cost, breakdown))  # pyright: ignore[reportUnknownMemberType]

    @on(DataTable.RowSelected)
    def open_row(self, event: DataTable.RowSelected) -> None:
        key, (values, _) = event.row_key.value or "", self.query(Table)
        if event.data_table is values.rows:  # pyright: ignore[reportUnknownMemberType]
            self.open(ValuePage(key))
        elif self.found:
            self.open(EstimatedPage(self.found.collectives[int(key)]))

    @on(OptionList.OptionSelected)
    def open_finding(self, event: OptionList.OptionSelected) -> None:
        self.open(FindingPage(self.query_one(FindingList).findings[event.option_id or ""]))

    def open(self, page: Page) -> None:
        """Opens a page of the origin dialog over this screen."""
        if (found := self.found) is None:
            return

        async def explain(_: Rules) -> list[Explanation]:
            return [found]

        mesh = MeshInfo(found.mesh, [])
        self.app.push_screen(OriginScreen(page, self.program, mesh, explain, has_rules=False))  # pyright: ignore[reportUnknownMemberType]


def compiled_lines(found: CompiledProgram) -> Content:
    memory = [f"{name:<12}{formatting.size(size):>9} per device" for name, size in compiled_bytes(found).items()]
    return Content("\n".join([*memory, "", *differences(found)]))
