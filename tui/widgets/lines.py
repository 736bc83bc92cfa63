"""Lines of text, of which only the changed ones are redrawn: over SSH every cell counts."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from weakref import WeakKeyDictionary

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from ..state.run_state import RunState
from ..terminal.axis_style import axis_style, whole_word

UNIT = r"(?:[kMGTP]?B|[kMGTP]?FLOP(?:/s)?|µs|ms|s|min|h|%|[kMGBTP]|ops?)(?!\w)"
DIGITS = r"\d[\d.,:]*(?:e-?\d+)?"
NUMBER = rf"(?<![\w.])[+−-]?{DIGITS}(?: ?(?:×|÷|…|of) ?{DIGITS})*(?: {UNIT})?(?:/s)?(?: \d+ {UNIT})*"
"""Matches a number with its unit: `1,204`, `4.72 MB`, `3 min 20 s`, `4 × 128`, `12 of 64`, `205…230 ms`, `3.2e-4`."""
ELLIPSIS = "…"
TALL = 32
"""Lines of a tall terminal."""


def cut_point(text: str, end: int) -> int:
    """Returns where to cut so that at most `end` characters remain and no number is cut."""
    for number in re.finditer(NUMBER, text):
        if number.start() < end < number.end():
            return number.start()
    return end


def cut(content: Content, width: int) -> Content:
    """Returns the content cut to `width` cells, ending in `…` if anything is cut."""
    if content.cell_length <= width:
        return content
    kept = len(content.plain)
    while kept and content[:kept].cell_length > width - len(ELLIPSIS):
        kept -= 1
    kept = cut_point(content.plain, kept)
    return Content.assemble(content[:kept].rstrip(), ELLIPSIS) if width > 0 else Content()


StyledText = tuple[str, str]
"""A text and its style."""
LEAST_WRAPPED = 8
"""Cells at which texts are wrapped at least."""


def wrapped(texts: Iterable[StyledText], width: int, indent: str = "") -> list[Content]:
    """Returns lines of at most `width` cells; `indent` begins all lines of a text but the first."""
    return [
        Content.styled(line, style)
        for text, style in texts
        for line in textwrap.wrap(text, max(LEAST_WRAPPED, width), subsequent_indent=indent)
    ]


EMPTY = Content()

TITLE_MARGIN = 6
"""Cells of a border that its title cannot use."""
_titles: "WeakKeyDictionary[Widget, tuple[str, str]]" = WeakKeyDictionary()


def axes_content(text: str, axes: Iterable[str]) -> Content:
    """Returns the text with these mesh axes in their colours."""
    found = Content(text)
    for axis in axes:
        found = found.highlight_regex(whole_word(axis), style=f"${axis_style(axis)}")
    return found


def bar(label: str, label_width: int, part: float, whole: float, value: str, width: int) -> Content:
    """Returns one row with a bar: `params   ━━━━───  1.6 MB`."""
    name, value = Content.styled(label, "$text-muted").truncate(label_width, ellipsis=True, pad=True), value.rjust(8)
    room = max(0, width - label_width - 1 - len(value))
    filled = min(room, max(part > 0, round(room * part / whole))) if whole else 0
    return Content.assemble(name, " ", ("━" * filled, "$primary"), ("─" * (room - filled), "$surface-lighten-2"), value)


def set_titles(widget: Widget, title: str, subtitle: str = "") -> None:
    _titles[widget] = (title, subtitle)
    refit_titles(widget)


def refit_titles(widget: Widget) -> None:
    """Cuts the titles to the widget's present width. An unchanged title is not set again: that redraws the widget."""
    if widget not in _titles:
        return
    width = widget.outer_size.width
    title, subtitle = (cut(Content(text), width - TITLE_MARGIN) if width else Content(text) for text in _titles[widget])
    if (widget.border_title or "") != title.markup:
        widget.border_title = title
    if (widget.border_subtitle or "") != subtitle.markup:
        widget.border_subtitle = subtitle


class Lines(Widget):
    """Lines of content, cut at the right edge but never inside a number. They are never parsed as markup."""

    DEFAULT_CSS = """
    Lines { height: 1; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Content] = ()
        self.drawn_size: Size | None = None
        """The size for which they were drawn; None before the first time."""

    def show(self, lines: Sequence[Content]) -> None:
        previous, self.lines = self.lines, lines
        if self.drawn_size != self.size:  # all of it will be rendered
            return
        pairs = enumerate(zip_longest(previous[: self.size.height], lines[: self.size.height], fillvalue=EMPTY))
        changed = [Region(0, y, self.size.width, 1) for y, (old, new) in pairs if not old.is_same(new)]
        if changed:
            self.refresh(*changed)

    def draw(self) -> None:
        """Shows the lines again; to be overridden if they depend on the size."""

    def on_resize(self) -> None:
        refit_titles(self)
        self.fit()

    def render_lines(self, crop: Region) -> list[Strip]:
        self.fit()  # the event of a resize comes after the first frame
        return super().render_lines(crop)

    def fit(self) -> None:
        if self.drawn_size != self.size:
            self.draw()
            self.drawn_size = self.size

    def render_line(self, y: int) -> Strip:
        line = cut(self.lines[y], self.size.width) if y < len(self.lines) else EMPTY
        base = self.visual_style
        parts = line.render(base, end="")
        strip = Strip([Segment(text, style.rich_style) for text, style in parts])
        return strip.adjust_cell_length(self.size.width, base.rich_style)


class StateLines(Lines):
    """Lines that are computed from the state of the run and the width of the widget."""

    def on_mount(self) -> None:
        self.state = RunState()

    def show_state(self, state: RunState) -> None:
        self.state = state
        self.draw()

    def draw(self) -> None:
        self.show(self.lines_for(self.state, self.size.width))

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        """Returns the lines, of `width` cells inside the border, and sets the titles, if there are any."""
        raise NotImplementedError


class Texts(Lines):
    """Texts wrapped at the width of the widget."""

    INDENT = ""
    """Begins all lines of a text but the first."""
    texts: Sequence[StyledText] = ()

    def show_texts(self, texts: Sequence[StyledText]) -> None:
        self.texts = texts
        self.draw()

    def draw(self) -> None:
        self.show(wrapped(self.texts, self.size.width, self.INDENT))


class Paragraphs(Texts):
    """Texts in a widget whose height follows."""

    def show(self, lines: Sequence[Content]) -> None:
        self.styles.height = len(lines)
        super().show(lines)
