"""What all views share: the status line above, the keys below, and being shown the state."""

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.binding import BindingsMap, BindingType
from textual.geometry import Offset
from textual.screen import Screen
from textual.widget import Widget

from ..messages import ViewShown
from ..state.run_state import RunState
from ..widgets.keys import Keys
from ..widgets.status_bar import StatusBar


def keys_of(bindings: Iterable[BindingType]) -> dict[str, str]:
    """The names of the actions, by key."""
    return {key: same[0].action.partition("(")[0] for key, same in BindingsMap(bindings).key_to_bindings.items()}


class RunScreen(Screen[None]):
    """A view shows the state when it comes up and whenever events arrive while it is up."""

    asks_compiler = False
    """It shows what only `InspectPreset` tells."""
    asks_estimates = False
    """It shows what formulas tell of presets."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 # Textual declares it of the instance
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.state = RunState()
        """As it was shown last."""

    def compose(self) -> ComposeResult:
        yield StatusBar()
        yield from self.body()
        yield Keys()

    def on_mount(self) -> None:
        # The app's, which is the first frame: a screen's own comes before it.
        self.app.call_after_refresh(self.complete)  # pyright: ignore[reportUnknownMemberType]

    async def complete(self) -> None:
        await self.query_one(Keys).show_keys()

    def body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.post_message, ViewShown())

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Nothing where the widget is gone and only its picture is left: Textual looks for the parent of what is
        clicked."""
        widget, offset = super().get_widget_and_offset_at(x, y)
        return (widget, offset) if widget is None or widget.is_attached else (None, None)

    @property
    def named_keys(self) -> dict[str, str]:
        """Actions of the view's keys, as `availability` names them."""
        return keys_of(type(self).BINDINGS)

    @property
    def chosen_preset(self) -> str | None:
        """The one under the cursor, where the view has presets."""
        return None

    def show_state(self, state: RunState) -> None:
        self.state = state
        self.query_one(StatusBar).show_state(state)
