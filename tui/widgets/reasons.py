"""Why an array is laid out as it is, a paragraph for each dim."""

import textwrap

from textual.content import Content

from ...engine.protocol import ArrayInfo
from .lines import Lines


class Reasons(Lines):
    def on_mount(self) -> None:
        self.border_title = "why"
        self.array: ArrayInfo | None = None

    def show_array(self, array: ArrayInfo) -> None:
        self.array = array
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.array is not None:
            self.show(reason_lines(self.array, self.size.width))


def reason_lines(array: ArrayInfo, width: int) -> list[Content]:
    if not array.shape:
        return [Content.styled("a scalar: every device holds it", "$foreground 60%")]
    return [
        Content.styled(line, "" if axes else "$foreground 60%")
        for reason, axes in zip(array.reasons, array.spec, strict=True)
        for line in textwrap.wrap(reason, max(width, 8), subsequent_indent="  ")
    ]
