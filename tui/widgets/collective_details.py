"""The details of one collective."""

import textwrap

from textual.content import Content

from ...engine.base import figures
from ...engine.wire.descriptions import CollectiveInfo
from .lines import Lines


class CollectiveDetails(Lines):
    """Kind, mesh axes, shapes, source line and operation of the selected collective; empty without one."""

    def on_mount(self) -> None:
        self.border_title = "collective"
        self.border_subtitle = "enter: origin"
        self.info: CollectiveInfo | None = None

    def show_collective(self, info: CollectiveInfo | None) -> None:
        """Shows a collective; None empties the panel."""
        self.info = info
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Draws the contents again, for example at another width."""
        self.show(detail_lines(self.info, self.size.width) if self.info else [])


def detail_lines(info: CollectiveInfo, width: int) -> list[Content]:
    """Returns the details of a collective, wrapped at `width`."""
    shapes = ", ".join(f"{info.dtype}[{','.join(map(str, shape))}]" for shape in info.shapes[:4])
    more = f" and {len(info.shapes) - 4} more" if len(info.shapes) > 4 else ""
    origin = "written by the user" if info.written else "inserted by the compiler"
    timing = f"{'' if info.overlapped else 'not '}overlapped with computation"
    over = figures.over(info.axes, info.network)
    texts = [
        f"{info.kind} over {over}, groups of {info.group_size}, {origin}, {timing}: {shapes}{more}",
        info.source or "source line unknown",
        info.op_name,
    ]
    return [Content(line) for text in texts for line in textwrap.wrap(text, max(width, 8))]
