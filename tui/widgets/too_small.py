"""What is shown in place of a view for which the terminal is too small."""

from textual.content import Content

from .lines import Lines

MIN_WIDTH, MIN_HEIGHT = 60, 15
"""Least cells of a terminal in which a view can be read."""


class TooSmall(Lines):
    """The terminal's size and the least size. It covers the view, whose keys still work."""

    DEFAULT_CSS = """
    TooSmall { display: none; layer: notice; width: 100%; height: 100%; background: $background; }
    """

    def on_resize(self) -> None:
        width, height = self.size
        lines = [f"{width} × {height} cells: too small", f"at least {MIN_WIDTH} × {MIN_HEIGHT} are needed"]
        blank = [Content()] * max(0, (height - len(lines)) // 2)
        self.show([*blank, *(Content(line.center(width)) for line in lines)])
