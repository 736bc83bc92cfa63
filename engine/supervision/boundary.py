"""What keeps the loop of a supervisor going while files, storage or the system fail: a turn that fails is reported
once, and tried again."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from ..base.advice import problems_in
from ..base.output import note_traceback, say
from ..base.user_error import UserError
from ..wire.ending import Ending

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Between two tries the pause doubles from the first to the longest."""
SIGNAL_SECONDS = 0.2
T = TypeVar("T")


class Boundary:
    def __init__(self, is_stopped: Callable[[], object]) -> None:
        """`is_stopped` returns whether a signal has asked the supervisor to stop."""
        self._is_stopped = is_stopped
        self._said: dict[str, str] = {}
        self._pause = FIRST_PAUSE_SECONDS

    def note(self, about: str, problem: str) -> None:
        """Says a problem, once until it changes or has been away; an empty one means that there is none."""
        if problem and self._said.get(about) != problem:
            say(problem)
        self._said[about] = problem

    @contextmanager
    def turn(self, about: str) -> Generator[None]:
        """Reports an error of this context, and goes on after it."""
        try:
            yield
            self.note(about, "")
        except Exception as error:
            problem = f"{words(error)}: tried again until it works"
            if not isinstance(error, OSError | UserError) and self._said.get(about) != problem:
                note_traceback(error)
            self.note(about, problem)

    def retried(self, about: str, action: Callable[[], T]) -> T | None:
        """Returns what `action` does, once it succeeds; None if the supervisor is to stop before."""
        while not self._is_stopped():
            with self.turn(about):
                found = action()
                self._pause = FIRST_PAUSE_SECONDS
                return found
            self.pause()
        return None

    def is_blocked(self, ending: Ending) -> bool:
        """Whether the machine did not let an engine begin; then it is reported, and waited before another try."""
        if ending.kind != "blocked":
            self.note("begin", "")
            self._pause = FIRST_PAUSE_SECONDS
            return False
        self.note("begin", f"the engine cannot begin: {ending.why}: tried again until it can")
        self.pause()
        return True

    def pause(self) -> None:
        """Waits before another try, longer each time until one succeeds; not once the supervisor is to stop."""
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        while time.monotonic() < until and not self._is_stopped():
            time.sleep(SIGNAL_SECONDS)


def words(error: Exception) -> str:
    """Returns an error in one line, with its file if it names one."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return "; ".join(problems_in(error))
