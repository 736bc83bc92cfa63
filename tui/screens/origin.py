"""A dialog that shows where a layout or a collective comes from, link by link, and what another rule would change."""

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.explain.explanation import Explanation
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..client.explainer import Explain, Rules
from ..state.origin_pages import Known, Line, Page, TriedPage, lines, title
from ..state.tried_rules import EXAMPLES, in_words, read_rules
from ..widgets.choices import PADDING, Choices
from ..widgets.lines import set_titles
from .dialog import Dialog

ESTIMATE = "Estimated by the partitioner's passes, not compiled: the compiler may choose other collectives."
EXPLAINING = "explaining"
FIRST_LINES = 10
"""A new page has its cursor on a line that opens another, if that is one of these: the top stays in sight."""
MIN_WIDTH = 20
"""Cells at which lines are wrapped at least."""


@dataclass
class Opened:
    """A page of the dialog."""

    page: Page
    known: Known
    """Its source."""
    lines: list[Line]
    """Its lines."""
    cursor: int = 0
    """The line that was followed last."""


class OriginScreen(Dialog[None]):
    """A page of lines. Enter opens the page of a line that has `›`, and escape returns to the page before."""

    HELP = """\
## The origin of a row

**Enter** on a row of Arrays or Traffic, or **o** in Lint: for each mesh axis the values that it came through, back to
the rule, the argument or the constraint that asked for it; dims that stayed unsharded, and why; conflicts; and the
collectives, with the operation that needs each. **Enter** on a line with `›` opens that value or collective.

**t** tries other rules, as `shardtui why --try` does: `mlp=model`, or `mlp=` for none, several with spaces between. It
shows what would change in layouts and in bytes of collectives. The run keeps its preset: edit that in Rules.

All of it is estimated by the partitioner's own passes, in a process of its own with low priority, and kept until the UI
closes. *As compiled* and *differs* compare a layout with the compiled one.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,backspace", "back", "Back"),
        ("t", "try_rule", "Try another rule"),
        ("q", "dismiss", "Close"),
    ]

    def __init__(
        self,
        page: Page,
        subject: str,
        mesh: MeshInfo,
        explain: Explain,
        arrays: Sequence[ArrayInfo] = (),
        has_rules: bool = True,
    ) -> None:
        """`subject`: the preset or program that has the row. `has_rules`: other rules can be tried.

        `arrays`: of the compiled step, with gradients and activations if they are known.
        """
        super().__init__()
        self.first = page
        self.subject = subject
        self.mesh = mesh
        self.explain = explain
        self.arrays = arrays
        self.has_rules = has_rules
        self.pages: list[Opened] = []
        """The open pages, the one on top last; none while there is no explanation."""
        self.busy: tuple[str, float] | None = None
        """The computation under way and its start; None for none."""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Choices()
            yield Input(placeholder=EXAMPLES, compact=True, max_length=200)
            yield Label(ESTIMATE, markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self.query_one(Choices).focus()
        self.set_interval(1.0, self.show_titles)
        self.show_titles()
        self.begin()

    def show_titles(self) -> None:
        keys = f"enter follows ›{' · t tries a rule' if self.has_rules else ''} · esc back"
        if self.busy:
            what, since = self.busy
            keys = f"{what} … {int(time.monotonic() - since)} s · esc back"
        top = self.pages[-1] if self.pages else None
        heading = title(top.page, top.known.rules) if top else title(self.first, "")
        set_titles(self.query_one(Vertical), f"{heading} · {self.subject}", keys)

    @work(exclusive=True)
    async def begin(self) -> None:
        if found := await self.ask({}):
            self.open(self.first, Known(found[0], self.arrays, self.mesh))

    async def ask(self, rules: Rules) -> list[Explanation]:
        """Returns the explanations; none if that failed, which the page says."""
        self.busy = (f"trying {in_words(rules)}" if rules else EXPLAINING, time.monotonic())
        self.show_titles()
        if not self.pages:
            self.fill([Line(f"{EXPLAINING} …")])
        found: list[Explanation] = []
        try:
            found = await self.explain(rules)
        except UserError as error:
            self.show_problems(error)
        self.busy = None
        self.show_titles()
        return found

    def show_problems(self, error: UserError) -> None:
        """Says why there is no explanation: on the page if it is empty, else below it."""
        problems = list(map(printable, error.problems))
        if self.pages:
            self.query_one(Label).update(Content.styled("\n".join(problems), "$error"))
        else:
            self.fill([Line(problem, "$error") for problem in problems])

    def open(self, page: Page, known: Known) -> None:
        shown = lines(page, known)
        first = next((number for number, line in enumerate(shown[:FIRST_LINES]) if line.opens), 0)
        self.pages.append(Opened(page, known, shown))
        self.show_page(first)

    def show_page(self, cursor: int) -> None:
        self.query_one(Label).update(ESTIMATE)
        self.fill(self.pages[-1].lines)
        self.query_one(Choices).highlighted = cursor
        self.show_titles()

    def fill(self, shown: list[Line]) -> None:
        options = self.query_one(Choices)
        width = max(MIN_WIDTH, options.scrollable_content_region.width - PADDING)
        options.clear_options()
        options.add_options(Option(_content(line, width)) for line in shown)

    def on_resize(self) -> None:
        if self.pages:
            self.call_after_refresh(lambda: self.show_page(self.query_one(Choices).highlighted or 0))

    @on(OptionList.OptionSelected)
    def follow(self, event: OptionList.OptionSelected) -> None:
        """Opens the page of a line."""
        if not self.pages or not (page := self.pages[-1].lines[event.option_index].opens):
            return
        top = self.pages[-1]
        top.cursor = event.option_index
        known = top.known
        if isinstance(top.page, TriedPage):
            known = replace(known, explanation=top.page.after, rules=top.page.rules)
        self.open(page, known)

    def action_back(self) -> None:
        if self.query_one(Input).display:
            self.close_prompt()
        elif len(self.pages) > 1:
            self.pages.pop()
            self.show_page(self.pages[-1].cursor)
        else:
            self.dismiss()

    def action_try_rule(self) -> None:
        if self.pages and self.has_rules:
            field = self.query_one(Input)
            field.display = True
            field.focus()

    def close_prompt(self) -> None:
        self.query_one(Input).display = False
        self.query_one(Choices).focus()

    @on(Input.Submitted)
    def try_rules(self, event: Input.Submitted) -> None:
        """Computes what the typed rules would change. Rules that cannot be read keep the prompt open."""
        try:
            rules = read_rules(event.value)
        except UserError as error:
            self.show_problems(error)
            return
        self.close_prompt()
        self.try_these(rules)

    @work(exclusive=True)
    async def try_these(self, rules: Rules) -> None:
        if found := await self.ask(rules):
            _, after = found
            self.open(TriedPage(in_words(rules), after), self.pages[0].known)


def _content(line: Line, width: int) -> Content:
    """Returns a line wrapped at `width`, further lines indented."""
    indent = " " * (len(line.text) - len(line.text.lstrip()) + 2)
    wrapped = textwrap.wrap(line.text, width, subsequent_indent=indent) or [" "]
    return Content.assemble(("\n".join(wrapped), line.style), (" ›" if line.opens else "", "bold $primary"))
