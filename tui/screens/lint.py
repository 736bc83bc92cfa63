"""Lint: likely mistakes in the active preset, and how to fix them."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...engine.analysis.finding import RULES, Finding
from ...engine.base import figures
from ...engine.wire.events import PresetCompiled, PresetInspected
from ..bindings import identified
from ..messages import ArrayChosen, CollectiveChosen, OriginRequested
from ..state.origin_pages import FindingPage
from ..state.run_state import RunState
from ..widgets.choices import Choices
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
        self.shown_layout: PresetCompiled | None = None
        self.shown_inspection: PresetInspected | None = None
        self.findings: dict[str, Finding] = {}
        """By option id."""

    def body(self) -> Iterable[Widget]:
        yield Choices()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        options = self.query_one(OptionList)
        is_inspecting = state.layout and not state.inspection and state.is_live
        title = f"findings on {state.preset}" if state.preset else "findings"
        set_titles(options, title, "compiling to check activations …" if is_inspecting else "")
        if state.layout and (state.layout is not self.shown_layout or state.inspection is not self.shown_inspection):
            self.shown_layout, self.shown_inspection = state.layout, state.inspection
            self.fill(options, grouped(state.findings), state)

    def fill(self, options: OptionList, groups: Sequence[Sequence[Finding]], state: RunState) -> None:
        """Lists the findings, each group under the heading of its code."""
        options.clear_options()
        self.findings = {}
        for group in groups:
            options.add_option(Option(heading(group), disabled=True))
            for found in group:
                id = str(len(self.findings))
                self.findings[id] = found
                options.add_option(Option(finding_content(found), id=id))
        if not groups:
            options.add_option(nothing_found(state))
        options.action_first()

    def action_origin(self) -> None:
        """Opens the origin of the finding under the cursor: the rules and lines at which its chains end."""
        options = self.query_one(OptionList)
        option = options.highlighted_option
        if option and (found := self.findings.get(option.id or "")):
            self.post_message(OriginRequested(FindingPage(found)))

    @on(OptionList.OptionSelected)
    def open_subject(self, event: OptionList.OptionSelected) -> None:
        found = self.findings.get(event.option_id or "")
        if found and found.arrays:
            self.post_message(ArrayChosen(found.arrays[0]))
        elif found and found.source:
            self.post_message(CollectiveChosen(found.source))


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Returns the findings of each code; groups and findings with the most bytes per device first."""
    by_code: dict[str, list[Finding]] = {}
    for found in sorted(findings, key=lambda found: -found.bytes_per_device):
        by_code.setdefault(found.code, []).append(found)
    return sorted(by_code.values(), key=lambda group: -sum(found.bytes_per_device for found in group))


def heading(group: Sequence[Finding]) -> Content:
    """Returns the heading of a code: its name, what it means, and the bytes of its findings."""
    first, cost = group[0], sum(found.bytes_per_device for found in group)
    count = f" · {len(group)} findings" if len(group) > 1 else ""
    size = f" · {figures.size(cost)} per device" if cost and len(group) > 1 else ""
    return Content.assemble(
        (f"{first.code} {first.name}", "bold $warning"), (f"  {RULES[first.code][1]}{count}{size}", "$foreground 60%")
    )


def finding_content(finding: Finding) -> Content:
    """Returns a finding as lines: message, fix, and the source line if it is known."""
    lines = [Content(f"  {finding.message}"), Content.styled(f"  → {finding.fix}", "$success")]
    if finding.source:
        lines.append(Content.styled(f"  {finding.source}", "$foreground 60%"))
    return Content("\n").join([*lines, Content()])


def nothing_found(state: RunState) -> Option:
    """Returns the row of an empty list; green only once activations and gradients were checked, too."""
    if state.inspection and not state.inspection.problem:
        return Option(Content.styled("✓ no findings", "$success"), disabled=True)
    text = "no findings so far, from parameters, moments and collectives"
    return Option(Content.styled(text, "$foreground 60%"), disabled=True)
