"""Lint: what is likely to be wrong with the active preset, and what to do about it."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...engine.analysis.lint import Finding
from ...engine.wire.events import PresetCompiled, PresetInspected
from ..messages import ArrayChosen
from ..state.run_state import RunState
from ..widgets.choices import Choices
from ..widgets.lines import entitle
from .run_screen import RunScreen


class LintScreen(RunScreen):
    HELP = """\
## Lint

What is likely to be wrong with the active preset on this model and these devices, from its compiled step. Codes keep
their meaning; `shardtui lint` gives the same without a run. **Enter** goes to the first array that a finding names.
"""
    AUTO_FOCUS: ClassVar[str | None] = "OptionList"
    asks_compiler = True

    def body(self) -> Iterable[Widget]:
        yield Choices()

    def on_mount(self) -> None:
        self.layout_shown: PresetCompiled | None = None
        self.inspection_shown: PresetInspected | None = None
        self.findings: list[Finding] = []

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        listed = self.query_one(OptionList)
        asks = state.layout and not state.inspection and state.is_heard
        title = f"findings on {state.preset}" if state.preset else "findings"
        entitle(listed, title, "asking the compiler about activations …" if asks else "")
        if state.layout and (state.layout is not self.layout_shown or state.inspection is not self.inspection_shown):
            self.layout_shown, self.inspection_shown, self.findings = state.layout, state.inspection, state.findings
            listed.clear_options()
            listed.add_options([Option(in_content(finding)) for finding in self.findings] or [nothing_found(state)])

    @on(OptionList.OptionSelected)
    def go_to_array(self, event: OptionList.OptionSelected) -> None:
        finding = self.findings[event.option_index] if self.findings else None
        if finding and finding.arrays:
            self.post_message(ArrayChosen(finding.arrays[0]))


def in_content(finding: Finding) -> Content:
    lines = [
        Content.assemble((f"{finding.code} ", "bold $warning"), (finding.name, "bold")),
        Content(finding.message),
        Content.styled(f"→ {finding.fix}", "$success"),
    ]
    if finding.source:
        lines.append(Content.styled(finding.source, "$foreground 60%"))
    return Content("\n").join([*lines, Content()])


def nothing_found(state: RunState) -> Option:
    knows_all = state.inspection and not state.inspection.problem
    known = "" if knows_all else " so far, from parameters, moments and collectives"
    return Option(Content.styled(f"✓ no findings{known}", "$success"), disabled=True)
