"""Lines of text of which only the changed ones are drawn again: over SSH every cell counts."""

from collections.abc import Sequence
from itertools import zip_longest
from weakref import WeakKeyDictionary

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from .whole import cut

EMPTY = Content()


FRAME = 6
"""Cells of a border beside its title."""
_titles: "WeakKeyDictionary[Widget, tuple[str, str]]" = WeakKeyDictionary()


def entitle(widget: Widget, title: str, subtitle: str = "") -> None:
    """Writes both into the widget's border, as far as there is room. See `retitle`."""
    _titles[widget] = (title, subtitle)
    retitle(widget)


def retitle(widget: Widget) -> None:
    """For a widget of another width. Setting a title draws the whole widget again, so the same one is not set."""
    width = widget.outer_size.width
    title, subtitle = (
        cut(Content(text), width - FRAME) if width else Content(text) for text in _titles.get(widget, ("", ""))
    )
    if (widget.border_title or "") != title.markup:
        widget.border_title = title
    if (widget.border_subtitle or "") != subtitle.markup:
        widget.border_subtitle = subtitle


class Lines(Widget):
    """Shows what it is given, cut at its edges, no number in two. Content is never read as markup."""

    DEFAULT_CSS = """
    Lines { height: 1; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: Sequence[Content] = ()

    def show(self, lines: Sequence[Content]) -> None:
        previous, self.lines = self.lines, lines
        pairs = enumerate(zip_longest(previous[: self.size.height], lines[: self.size.height], fillvalue=EMPTY))
        changed = [Region(0, y, self.size.width, 1) for y, (old, new) in pairs if not old.is_same(new)]
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        retitle(self)

    def render_line(self, y: int) -> Strip:
        line = cut(self.lines[y], self.size.width) if y < len(self.lines) else EMPTY
        base = self.visual_style
        parts = line.render(base, end="")
        strip = Strip([Segment(text, style.rich_style) for text, style in parts])
        return strip.adjust_cell_length(self.size.width, base.rich_style)
