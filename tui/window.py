"""The title and the progress that the terminal's window shows."""

from .state.run_state import Phase, RunState
from .terminal.driver import Driver

PUSH_TITLE, POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"
"""Keep the present title, and bring it back (XTWINOPS)."""
NO_PROGRESS = "0"


def title(state: RunState) -> str:
    run = state.about.run if state.about else "shardtui"
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
    """Writes title and progress to the terminal if they have changed."""

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
