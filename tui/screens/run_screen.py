"""The frame of all views: tabs and status at the top, the keys at the bottom, and `show_state`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Footer

from ..bindings import key_of
from ..messages import ViewShown
from ..state.run_state import RunState
from ..widgets.lines import TALL, Lines
from ..widgets.status_bar import StatusBar
from ..widgets.tab_bar import TabBar
from .dialog import BaseScreen, Dialog

if TYPE_CHECKING:
    from ..state.tour import Tour

T = TypeVar("T")


def actions_by_key(bindings: Iterable[BindingType]) -> dict[str, str]:
    """Returns the name of each key's action, without arguments: `{"f": "follow"}`."""
    return {
        key: same[0].action.removeprefix("app.").partition("(")[0]
        for key, same in BindingsMap(bindings).key_to_bindings.items()
    }


MIN_WIDTH, MIN_HEIGHT = 60, 15
"""Least cells of a terminal in which a view can be read."""


class TooSmall(Lines):
    """The terminal's size and the least size. It covers the view, whose keys still work."""

    DEFAULT_CSS = """
    TooSmall { display: none; layer: notice; width: 100%; height: 100%; background: $background; }
    """

    def draw(self) -> None:
        width, height = self.size
        lines = [f"{width} × {height} cells: too small", f"at least {MIN_WIDTH} × {MIN_HEIGHT} are needed"]
        blank = [Content()] * max(0, (height - len(lines)) // 2)
        self.show([*blank, *(Content(line.center(width)) for line in lines)])


class RunScreen(BaseScreen[None]):
    """A view: the status bar, a body and the footer. It shows the run's state when it opens and as events arrive."""

    DEFAULT_CSS = """
    RunScreen {
        layers: default notice; overflow: hidden;

        &.-tiny TooSmall, &.-low TooSmall { display: block; }
    }
    """

    needs_inspection = False
    """Whether the view shows what only `InspectPreset` reports: gradients and activations."""
    needs_estimates = False
    """Whether the view shows estimates of presets."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-narrow"), (110, "-wide")]  # noqa: RUF012 # Textual declares an instance variable
    VERTICAL_BREAKPOINTS = [(0, "-low"), (MIN_HEIGHT, "-short"), (TALL, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.state = RunState()
        """The state that was shown last."""

    def compose(self) -> ComposeResult:
        yield TabBar(self.title_of_tab)
        yield StatusBar()
        yield from self.body()
        yield Keys()
        yield TooSmall()

    def on_mount(self) -> None:
        # The app calls it after the first frame; a screen's own `call_after_refresh` would come before that.
        self.app.call_after_refresh(self.finish_mount)  # pyright: ignore[reportUnknownMemberType]

    async def finish_mount(self) -> None:
        if self.is_attached:
            await self.query_one(Keys).mount(WholeKeys(compact=True, show_command_palette=False), before=0)
            self.refresh_bindings()

    def body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.post_message, ViewShown())

    @property
    def title_of_tab(self) -> str:
        """The view's title in the tabs, as `Watch`."""
        return type(self).__name__.removesuffix("Screen")

    @property
    def named_keys(self) -> dict[str, str]:
        """The view's own keys, with their actions as `availability` names them."""
        return actions_by_key(type(self).BINDINGS)

    @property
    def chosen_preset(self) -> str | None:
        return None

    async def ask(self, dialog: Dialog[T]) -> T | None:
        """Returns the answer of a dialog; None if another dialog or the palette is on top or opens meanwhile.

        Only workers may call it: it waits for the user.
        """
        if not self.is_active:
            return None
        return await self.app.push_screen(dialog, wait_for_dismiss=True)  # pyright: ignore[reportUnknownMemberType]

    def follow_device(self, device: int | None) -> None:
        """Marks this device's shard in every array; none if it is marked already."""
        self.state.followed = None if self.state.followed == device else device
        self.post_message(ViewShown())

    def show_state(self, state: RunState) -> None:
        self.state = state
        self.query_one(StatusBar).show_state(state)
        if state.tour:
            self.show_tour(state.tour)

    def show_tour(self, tour: "Tour") -> None:
        """Shows the lesson of the tour that follows from what the user sees."""
        from ..widgets.tour_strip import TourStrip

        view = self.title_of_tab.lower()
        tour.advance(view, self.state)
        self.set_class(tour.lesson is not None, "-tour")
        if not self.query(TourStrip):
            self.mount(TourStrip(), after=self.query_one(StatusBar))
        self.query_one(TourStrip).show_tour(tour, view)


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


class WholeKeys(Footer):
    """The keys of the view, without those that would be cut at the right; redrawn only where they change."""

    DEFAULT_CSS = "WholeKeys FooterKey.-cut { visibility: hidden; }"
    drawn: Sequence[tuple[Binding, bool]] = ()
    """The bindings that were drawn last, and whether each was enabled."""

    async def recompose(self) -> None:
        active = self.screen.active_bindings.values()
        bindings = [(each.binding, each.enabled) for each in active if each.binding.show]
        if bindings != self.drawn:
            self.drawn = bindings
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
        self.show([Content("").join(_key(key_of(self, action), name, action) for action, name in ALWAYS.items())])

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return sum(line.cell_length for line in self.lines)


def _key(key: str, name: str, action: str) -> Content:
    parts = (f" {key} ", "$footer-key-foreground bold"), (f"{name} ", "$footer-description-foreground")
    return Content.assemble(*parts).stylize(f"@click=app.{action}")
