"""Wrapped text."""

import textwrap
from collections.abc import Sequence

from textual.content import Content

from .lines import Lines


class Paragraphs(Lines):
    """Texts wrapped at the width of the widget, whose height follows."""

    texts: Sequence[tuple[str, str]] = ()
    """Each with its style."""

    def show_texts(self, texts: Sequence[tuple[str, str]]) -> None:
        self.texts = texts
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Wraps the texts at the present width."""
        wrapped = [
            Content.styled(line, style)
            for text, style in self.texts
            for line in textwrap.wrap(text, max(8, self.size.width))
        ]
        if self.styles.height is None or self.styles.height.value != len(wrapped):
            self.styles.height = len(wrapped)
        self.show(wrapped)
