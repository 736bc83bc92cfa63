"""Notices over the current view: what failed, why a key does nothing; and the window's title and progress."""

import time
from collections.abc import Iterable

from textual.app import App

from ..engine.base.output import printable
from ..engine.wire.events import AnyEvent
from .screens.dialog import Dialog
from .state.announcements import Announcement, announcement
from .state.availability import why_not
from .state.run_state import Phase, RunState
from .terminal.driver import Driver


class Notices:
    def __init__(self, app: App[None], state: RunState) -> None:
        self._app = app
        self._state = state
        self._opened = time.time()
        """When the viewer started, in seconds since the epoch."""
        self._held: list[Announcement] = []
        """For when the dialog is closed that is open now."""

    def announce(self, event: AnyEvent) -> None:
        if notice := announcement(event, self._state, self._opened):
            self.show(notice)

    def show(self, notice: Announcement) -> None:
        """Shows a notice, if a dialog is open once it is closed."""
        if isinstance(self._app.screen, Dialog):
            self._held.append(notice)
        else:
            self._app.notify(notice.text, title=notice.title, severity=notice.severity, markup=False)

    def show_held(self) -> None:
        held, self._held = self._held, []
        for notice in held:
            self.show(notice)

    def refuses(self, action: str) -> bool:
        """Returns whether the action does nothing in this state of the run; if so, a notice says why."""
        if why := why_not(action, self._state):
            self.warn([why])
        return bool(why)

    def warn(self, problems: Iterable[str], title: str = "") -> None:
        self._app.notify("\n".join(map(printable, problems)), title=title, severity="warning", markup=False)


PUSH_TITLE, POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"
"""Keep the present title, and bring it back (XTWINOPS)."""
NO_PROGRESS = "0"


def title(state: RunState) -> str:
    run = state.name or "shardtui"
    return f"{run} · step {state.step:,} · {state.phase.value}" if state.step else f"{run} · {state.phase.value}"


def progress(state: RunState) -> str:
    """Returns the progress as OSC 9;4 writes it: state, and per cent where the run has a last step."""
    steps = state.config.steps if state.config else None
    done = f";{min(100, 100 * state.step // steps)}" if steps else ""
    match state.phase:
        case Phase.STARTING | Phase.COMPILING:
            return "3"  # busy
        case Phase.FAILED | Phase.LOST | Phase.DISCONNECTED:
            return f"2{done or ';100'}"
        case Phase.PAUSED if done:
            return f"4{done}"
        case Phase.STOPPED:
            return NO_PROGRESS
        case _:
            return f"1{done}" if done else NO_PROGRESS


class Window:
    def __init__(self) -> None:
        self._title = ""
        self._progress = NO_PROGRESS

    def show(self, state: RunState, driver: object) -> None:
        if not isinstance(driver, Driver):
            return
        new_title, new_progress = title(state), progress(state)
        if new_title != self._title:
            driver.write(f"{'' if self._title else PUSH_TITLE}\x1b]2;{new_title}\x07")
            self._title = new_title
        if new_progress != self._progress:
            driver.write(f"\x1b]9;4;{new_progress}\x07")
            self._progress = new_progress

    def restore(self, driver: object) -> None:
        if isinstance(driver, Driver) and self._title:
            driver.write(f"\x1b]9;4;{NO_PROGRESS}\x07{POP_TITLE}")
