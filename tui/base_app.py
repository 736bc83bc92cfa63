"""The base of both apps: the driver of the terminal, the user's keys, help and palette, without races of Textual's."""

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

from rich.theme import Theme
from textual.app import App, ScreenStackError
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.notifications import Notification, Notify, SeverityLevel
from textual.widget import AwaitMount, MountError
from textual.worker import WorkerFailed

from .bindings import identified
from .screens.dialog import STYLES, Dialog
from .terminal.axis_style import AXIS_STYLES
from .terminal.contrast import readable
from .terminal.driver import Driver

T = TypeVar("T")
MIN_SECONDS = 0.1
"""The shortest time for which a notice is shown."""


class Notice(Notification):
    """A notification shown for a moment even if it has expired: Textual's timer for the past repeats without pause."""

    @property
    def time_left(self) -> float:
        return max(super().time_left, MIN_SECONDS)

    @property
    def has_expired(self) -> bool:
        return super().time_left <= 0


class BaseApp(App[T], Generic[T]):
    def __init__(self, keymap: Mapping[str, str]) -> None:
        """`keymap`: the user's keys by the ids of their bindings."""
        super().__init__(driver_class=Driver)
        self.set_keymap(dict(keymap))

    def get_css_variables(self) -> dict[str, str]:
        """Returns the theme's variables, readable; tables, which Rich draws, get the colours of mesh axes, too."""
        variables = readable(super().get_css_variables())
        if variables != self.theme_variables:
            self.theme_variables = variables
            self.console.push_theme(Theme({name: variables[name].removeprefix("ansi_") for name in AXIS_STYLES}))
        return variables

    def _handle_exception(self, error: Exception) -> None:
        """Ignores errors of messages to widgets that are gone while the app exits."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        is_ending = self._exit or not self.is_running
        if not (is_ending and isinstance(cause, NoMatches | MountError | ScreenStackError)):
            super()._handle_exception(error)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Posts the notification as a `Notice`, which is shown even if it has expired."""
        timeout = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        self.post_message(Notify(Notice(message, title, severity, timeout, markup)))

    @property
    def is_dialog_open(self) -> bool:
        return isinstance(self.screen, Dialog)

    def switch_mode(self, mode: str) -> AwaitMount:
        """Does nothing over a dialog: a key pressed before that opened would close it or remove the view below it."""
        return AwaitMount(self.screen, []) if self.is_dialog_open else super().switch_mode(mode)

    async def action_switch_mode(self, mode: str) -> None:
        """Waits for the switch, so that the next key goes to the new view."""
        await self.switch_mode(mode)

    def action_help(self) -> None:
        from .screens.help import HelpScreen

        if self.screen.is_mounted:
            self.push_screen(HelpScreen(self.screen))

    def action_command_palette(self) -> None:
        from .palette import Palette

        if not self.is_dialog_open:
            self.push_screen(Palette())

    def search_themes(self) -> None:
        from textual.theme import ThemeProvider

        from .palette import Palette

        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))


class SingleViewApp(BaseApp[T], Generic[T]):
    """An app of one view, its default screen, without a run."""

    CSS_PATH = STYLES  # Textual loads no styles of a default screen
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "", [("question_mark", "help", "Help"), Binding("q,ctrl+q,ctrl+c", "quit", "Quit")]
    )
