"""Watch, the first view. Its first frame is the line that every view has: the panels take a while to make."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from ..messages import ViewShown
from ..state.run_state import RunState
from .run_screen import RunScreen

if TYPE_CHECKING:
    from ..widgets.watch_panels import WatchPanels


class WatchScreen(RunScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("l", "log_axis", "Log axis", show=False)]

    panels: "WatchPanels | None" = None

    def body(self) -> Iterable[Widget]:
        return ()

    async def complete(self) -> None:
        from ..widgets.watch_panels import WatchPanels

        if not self.is_attached:
            return
        panels = WatchPanels()
        await self.mount(panels)
        panels.query_one("PresetList").focus()
        self.panels = panels
        self.post_message(ViewShown())
        self.call_after_refresh(super().complete)

    @property
    def named_keys(self) -> dict[str, str]:
        return {**super().named_keys, "enter": "switch"}

    @property
    def chosen_preset(self) -> str | None:
        return self.panels.chosen_preset if self.panels else None

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if self.panels:
            self.panels.show_state(state)

    def action_log_axis(self) -> None:
        if self.panels:
            self.panels.toggle_logarithmic()
