"""The help of a view: its keys and what it shows, over the view, with a search."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
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
            yield VerticalScroll(Markdown(), Static(), can_focus=False)

    async def on_mount(self) -> None:
        await self.show_matching()

    @on(Input.Changed)
    async def show_matching(self) -> None:
        words = self.query_one(Input).value.casefold().split()
        paragraphs = matching_paragraphs(self.texts, words)
        keys = [(key, text) for key, text in self.keys if contains(f"{key} {text}", words)]
        lines = [Content.assemble((f"{key:<{KEY_WIDTH}}", "bold $primary"), text) for key, text in keys]
        await self.query_one(Markdown).update("\n\n".join(paragraphs) if paragraphs or keys else "Nothing found.")
        self.query_one(Static).update(Content("\n").join(lines))

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def help_texts(view: Screen[Any]) -> Iterable[str]:
    return dict.fromkeys(node.HELP for node in view.walk_children(with_self=True) if getattr(node, "HELP", None))  # type: ignore[attr-defined,misc] # a DOM node that is no widget has none


def keys_of(view: Screen[Any]) -> Iterable[tuple[str, str]]:
    for _, binding, enabled, tooltip in view.active_bindings.values():
        if enabled and not binding.system and binding.description:
            yield view.app.get_key_display(binding), tooltip or binding.description  # pyright: ignore[reportUnknownMemberType]


def contains(text: str, words: Sequence[str]) -> bool:
    return all(word in text.casefold() for word in words)


def matching_paragraphs(texts: Iterable[str], words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        heading, *paragraphs = text.strip().split("\n\n")
        kept = [paragraph for paragraph in paragraphs if contains(f"{heading} {paragraph}", words)]
        found += [heading, *kept] if kept else []
    return found
