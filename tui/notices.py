"""Notices over the current view: what failed, and why a key does nothing."""

import time
from collections.abc import Iterable

from textual.app import App
from textual.notifications import Notification

from ..engine.wire.events import AnyEvent
from .state.announcements import Announcement, announcement
from .state.availability import why_not
from .state.run_state import RunState
from .terminal.clean import printable

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


class Notices:
    """Shows notices in the app."""

    def __init__(self, app: App[None], state: RunState) -> None:
        self._app = app
        self._state = state
        self._opened = time.time()
        """When the viewer started, in seconds since the epoch."""

    def announce(self, event: AnyEvent) -> None:
        if notice := announcement(event, self._state, self._opened):
            self.show(notice)

    def show(self, notice: Announcement) -> None:
        self._app.notify(
            notice.text, title=notice.title, severity=notice.severity, timeout=notice.seconds, markup=False
        )

    def refuses(self, action: str) -> bool:
        """Returns whether the action does nothing in this state of the run; if so, a notice says why."""
        why = why_not(action, self._state)
        if why:
            self.warn([why])
        return bool(why)

    def warn(self, problems: Iterable[str], title: str = "") -> None:
        self._app.notify("\n".join(map(printable, problems)), title=title, severity="warning", markup=False)
