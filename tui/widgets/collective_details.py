"""One collective in full."""

import textwrap

from textual.content import Content

from ...engine.base import figures
from ...engine.wire.descriptions import CollectiveInfo
from .lines import Lines


class CollectiveDetails(Lines):
    def on_mount(self) -> None:
        self.border_title = "collective"
        self.info: CollectiveInfo | None = None

    def show_collective(self, info: CollectiveInfo | None) -> None:
        self.info = info
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.show(detail_lines(self.info, self.size.width) if self.info else [])


def detail_lines(info: CollectiveInfo, width: int) -> list[Content]:
    shapes = ", ".join(f"{info.dtype}[{','.join(map(str, shape))}]" for shape in info.shapes[:4])
    more = f" and {len(info.shapes) - 4} more" if len(info.shapes) > 4 else ""
    origin = "stands in the code" if info.written else "inserted by the compiler"
    texts = [
        f"{info.kind} over {figures.over(info.axes)}, groups of {info.group_size}, {origin}: {shapes}{more}",
        info.source or "no source line told",
        info.op_name,
    ]
    return [Content(line) for text in texts for line in textwrap.wrap(text, max(width, 8))]
