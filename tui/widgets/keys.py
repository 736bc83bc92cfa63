"""The bottom line: the keys of the view that is up."""

from textual.containers import Container
from textual.widgets import Footer


class Keys(Container):
    """Its place is kept. The keys come once the first frame is drawn, which would wait for a widget of each."""

    DEFAULT_CSS = """
    Keys { dock: bottom; height: 1; background: $footer-background; }
    """

    async def show_keys(self) -> None:
        if not self.is_attached:
            return
        await self.mount(Footer(compact=True, show_command_palette=False))
        self.screen.refresh_bindings()
