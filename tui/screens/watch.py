"""Watch, the first view: the presets, the loss and what a step costs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.widget import Widget

from ...engine.wire.run_directory import RunDirectory, all_runs
from ..bindings import identified
from ..messages import ViewShown
from ..state.run_state import RunState
from .dialog import WATCH_STYLES
from .run_screen import RunScreen

if TYPE_CHECKING:
    from ..widgets.loss_chart import Mode
    from ..widgets.watch_panels import WatchPanels


class WatchScreen(RunScreen):
    """The status bar at once, the panels after the first frame: they take a while to import, to style and to mount."""

    CSS_PATH = None

    BINDINGS: ClassVar[list[BindingType]] = identified(
        "watch",
        [
            Binding("l", "draw('log axis')", "Log axis", show=False),
            Binding("S", "draw('smoothed')", "Smooth", show=False),
            Binding("g", "next_curve", "Next curve", show=False, tooltip="Draw the next scalar of the step"),
            Binding("u", "draw('under')", "Under the loss", show=False, tooltip="Lay that scalar under the loss"),
            Binding("i", "overlay", "Overlay", show=False, tooltip="Draw the losses of other runs, too"),
            Binding("m", "memory", "Memory", tooltip="What fills the memory at the peak of a step"),
            Binding("escape", "app.cancel_switch", "Cancel switch"),
        ],
    )

    panels: "WatchPanels | None" = None
    """None until they are mounted."""
    overlaid: Sequence[RunDirectory] = ()
    """The runs whose losses the user wants in the chart, too."""

    def body(self) -> Iterable[Widget]:
        return ()

    async def finish_mount(self) -> None:
        from ..widgets.watch_panels import WatchPanels

        if not self.is_attached:
            return
        styles = self.app.stylesheet  # pyright: ignore[reportUnknownMemberType]
        if not styles.has_source(str(WATCH_STYLES), ""):
            styles.read(WATCH_STYLES)  # parsed with the styles of the panels
        panels = WatchPanels()
        await self.mount(panels)
        panels.query_one("PresetList").focus()
        self.panels = panels
        self.post_message(ViewShown())
        self.call_after_refresh(super().finish_mount)

    @property
    def named_keys(self) -> dict[str, str]:
        """The actions by key whose absence is explained."""
        return {key: action for key, action in super().named_keys.items() if key != "escape"} | {"enter": "switch"}

    @property
    def chosen_preset(self) -> str | None:
        return self.panels.chosen_preset if self.panels else None

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if self.panels:
            self.panels.show_state(state)

    def action_draw(self, mode: "Mode") -> None:
        if self.panels:
            self.panels.chart.toggle(mode)

    def action_next_curve(self) -> None:
        if self.panels:
            self.panels.chart.choose_next()

    @work(exclusive=True, group="memory")
    async def action_memory(self) -> None:
        """Shows what fills the memory at the peak of a step, if its program is known."""
        from .memory import MemoryScreen

        layout = self.state.layout
        if layout is None or layout.memory is None or layout.at_peak is None:
            self.notify("what fills the memory is known once the step is compiled, if its text can be read")
            return
        if self.state.tour:
            self.state.tour.visit("memory")
        await self.ask(MemoryScreen(layout.preset, layout.at_peak, layout.peak_buffers, layout.memory.peak))

    @work(exclusive=True, group="overlay")
    async def action_overlay(self) -> None:
        """Asks which other runs to draw in the loss chart, and reads the losses of those that are new there."""
        from ..widgets.other_curves import curves_of
        from .overlay import OverlayScreen

        if not self.state.about or not self.panels:
            return
        others = [run for run in all_runs() if run.name != self.state.name]
        chosen = await self.ask(OverlayScreen(others, self.overlaid))
        if chosen is None:
            return
        self.overlaid = chosen
        async for curves in curves_of(chosen, self.panels.chart.others):
            self.panels.chart.overlay(curves)
