"""The help of a view: its keys and what it shows, over the view, with a search."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input, Markdown, Static

from .dialog import Dialog

KEY_WIDTH = 12


class HelpScreen(Dialog[None]):
    """Paragraphs and keys. What is typed leaves those that contain each of its words."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Close"),
        ("up", "scroll(-1)", "Up"),
        ("down", "scroll(1)", "Down"),
        ("pageup", "scroll(-10)", "Page up"),
        ("pagedown", "scroll(10)", "Page down"),
    ]

    def __init__(self, view: Screen[Any]) -> None:
        super().__init__()
        self.texts = list(help_texts(view))
        self.keys = list(keys_of(view))

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "help"
            box.border_subtitle = "↑↓ scroll · esc close"
            yield Input(placeholder="search", compact=True)
            yield VerticalScroll(Static(), Markdown(), can_focus=False)

    async def on_mount(self) -> None:
        await self.show_matching()

    @on(Input.Changed)
    @on(Resize)
    async def show_matching(self) -> None:
        words = self.query_one(Input).value.casefold().split()
        paragraphs = matching_paragraphs(self.texts, words)
        keys = [(key, text) for key, text in self.keys if contains(f"{key} {text}", words)]
        lines = key_lines(keys, self.query_one(Static).size.width)
        await self.query_one(Markdown).update("\n\n".join(paragraphs) if paragraphs or keys else "Nothing found.")
        self.query_one(Static).update(Content("\n").join(lines))

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def help_texts(view: Screen[Any]) -> Iterable[str]:
    return dict.fromkeys(node.HELP for node in view.walk_children(with_self=True) if getattr(node, "HELP", None))  # type: ignore[attr-defined,misc] # a DOM node that is no widget has none


def keys_of(view: Screen[Any]) -> Iterable[tuple[str, str]]:
    """Yields the keys that do something now: those of the view, then those of every one, then Textual's own."""
    known = [each for each in view.active_bindings.values() if each.enabled and not each.binding.system]
    for each in sorted(known, key=lambda each: not each.binding.id):
        if each.binding.description:
            yield view.app.get_key_display(each.binding), each.binding.description  # pyright: ignore[reportUnknownMemberType]


def key_lines(keys: Sequence[tuple[str, str]], width: int) -> list[Content]:
    """Returns the keys in two columns, downwards, or in one where two have no room."""
    cells = [Content.assemble((f"{key:<{KEY_WIDTH}}", "bold $primary"), text) for key, text in keys]
    half = width // 2
    if any(cell.cell_length >= half for cell in cells):
        return cells
    rows = -(-len(cells) // 2)
    pairs = zip_longest(cells[:rows], cells[rows:], fillvalue=Content())
    return [Content.assemble(left.pad_right(half - left.cell_length), right) for left, right in pairs]


def contains(text: str, words: Sequence[str]) -> bool:
    return all(word in text.casefold() for word in words)


def matching_paragraphs(texts: Iterable[str], words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        heading, *paragraphs = text.strip().split("\n\n")
        kept = [paragraph for paragraph in paragraphs if contains(f"{heading} {paragraph}", words)]
        found += [heading, *kept] if kept else []
    return found
