"""The bottom line: the keys of the active view, and at its right end always help and palette."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Footer

from ..bindings import key_of
from .lines import Lines

ALWAYS = {"help": "Help", "command_palette": "Palette"}
"""Name by action of the app."""


class Keys(Horizontal):
    """The keys that work now. They are mounted after the first frame, which would wait for a widget per key."""

    DEFAULT_CSS = """
    Keys {
        dock: bottom; height: 1; background: $footer-background;

        Footer { dock: none; width: 1fr; }
        Always { width: auto; background: $footer-background; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Always()

    async def show_keys(self) -> None:
        if not self.is_attached:
            return
        await self.mount(WholeKeys(compact=True, show_command_palette=False), before=0)
        self.screen.refresh_bindings()


class WholeKeys(Footer):
    """The keys of the view, without those that would be cut at the right."""

    DEFAULT_CSS = "WholeKeys FooterKey.-cut { visibility: hidden; }"

    async def recompose(self) -> None:
        await super().recompose()
        self._hide_cut()

    def on_resize(self) -> None:
        self._hide_cut()

    def _hide_cut(self) -> None:
        right = 0
        for key in self.query("FooterKey"):
            right += key.get_content_width(self.size, self.size)
            key.set_class(right > self.size.width, "-cut")
            right += key.styles.margin.width


class Always(Lines):
    """The keys that work in every view. A click does what they do."""

    def on_mount(self) -> None:
        line = Content("").join(_key(key_of(self, action), name, action) for action, name in ALWAYS.items())
        self.styles.width = line.cell_length
        self.show([line])


def _key(key: str, name: str, action: str) -> Content:
    parts = (f" {key} ", "$footer-key-foreground bold"), (f"{name} ", "$footer-description-foreground")
    return Content.assemble(*parts).stylize(f"@click=app.{action}")
