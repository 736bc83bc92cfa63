"""Lint: likely mistakes in the active preset, and how to fix them."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList

from ...engine.hlo.finding import OF_PROGRAMS, RULES
from ...engine.hlo.lint import lint
from ..bindings import identified
from ..messages import OriginRequested, RowChosen
from ..state.origin_pages import FindingPage
from ..state.run_state import RunState
from ..widgets.finding_list import FindingList
from ..widgets.lines import set_titles
from .run_screen import RunScreen


class LintScreen(RunScreen):
    """A list of findings, each with its code, what was found, the fix and the source line."""

    HELP = """\
## Lint

Likely mistakes in the active preset for this model and these devices, found in its compiled step, by code, the
most bytes per device first. Codes keep their meaning; `shardtui lint` prints the same without a run. **o** opens the
origin of a finding: the rules and lines at which its chains end, which is where to change it. **Enter** opens the first
array that a finding names, or else the collective at its source line; enter there opens that row's origin.
"""
    AUTO_FOCUS: ClassVar[str | None] = "OptionList"
    BINDINGS: ClassVar[list[BindingType]] = identified("lint", [("o", "origin", "Origin")])
    needs_inspection = True

    def __init__(self) -> None:
        super().__init__()
        self.shown: tuple[object, ...] = ()

    def body(self) -> Iterable[Widget]:
        yield FindingList()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        options = self.query_one(FindingList)
        is_inspecting = state.layout and not state.inspection and state.is_live
        title = f"findings on {state.preset}" if state.preset else "findings"
        set_titles(options, title, "compiling to check activations …" if is_inspecting else "")
        shown = (state.layout, state.inspection)
        if state.layout and state.ready and shown != self.shown:
            self.shown = shown
            found = lint(state.layout, state.inspection, state.ready.flops_per_step)
            options.show_findings(found, nothing_found(state))

    def action_origin(self) -> None:
        if found := self.query_one(FindingList).highlighted_finding:
            self.post_message(OriginRequested(FindingPage(found)))

    @on(OptionList.OptionSelected)
    def open_subject(self, event: OptionList.OptionSelected) -> None:
        found = self.query_one(FindingList).findings.get(event.option_id or "")
        if found and found.arrays:
            self.post_message(RowChosen("arrays", (found.arrays[0],)))
        elif found and found.source:
            self.post_message(RowChosen("traffic", (found.source,)))


def nothing_found(state: RunState) -> list[Content]:
    """Returns the rows of an empty list: what was checked. Green only once activations and gradients were, too."""
    if state.inspection and not state.inspection.problem:
        lines, mark = [Content.styled("✓ no findings", "$success")], ("✓", "$success")
    else:
        text = "no findings so far, from parameters, moments and collectives"
        lines, mark = [Content(text)], ("·", "$text-muted")
    checks = ((code, text) for code, (_, text) in RULES.items() if code != OF_PROGRAMS)
    rows = (Content.assemble(mark, f" {code} ", (text, "$text-muted")) for code, text in checks)
    return [*lines, Content(), *rows]
