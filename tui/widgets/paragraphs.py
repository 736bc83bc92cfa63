"""Sentences that are as high as they need to be."""

import textwrap
from collections.abc import Sequence

from textual.content import Content

from .lines import Lines


class Paragraphs(Lines):
    def on_mount(self) -> None:
        self.texts: Sequence[tuple[str, str]] = ()

    def show_texts(self, texts: Sequence[tuple[str, str]]) -> None:
        """Each a text and its style."""
        self.texts = texts
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        wrapped = [
            Content.styled(line, style)
            for text, style in self.texts
            for line in textwrap.wrap(text, max(8, self.size.width))
        ]
        if self.styles.height is None or self.styles.height.value != len(wrapped):
            self.styles.height = len(wrapped)
        self.show(wrapped)
