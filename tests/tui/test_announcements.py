"""What is announced when a supervised engine ends, and when its supervisor has started the next."""

import msgspec
from shardtui.engine.spec.attempt import Attempt, LostProcess
from shardtui.engine.wire.events import EngineLost, EngineStarted, Failed
from shardtui.tui.state.announcements import announcement
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState

from ..conftest import tiny_config

STARTED = EngineStarted(protocol=1, pid=7, config=tiny_config())
LOST = EngineLost(reason="killed")


def announced(started: EngineStarted, event: EngineLost | Failed | EngineStarted) -> tuple[str, str, str]:
    """Returns title, last line and severity of the announcement of an event after a start."""
    state = RunState()
    apply(state, started)
    found = announcement(event, state, 0.0)
    assert found
    return found.title, found.text.splitlines()[-1], found.severity


def supervised(lost: LostProcess | None = None) -> EngineStarted:
    return msgspec.structs.replace(STARTED, attempt=Attempt(number=2 if lost else 1, supervisor=6, lost=lost))


def test_without_a_supervisor_a_key_resumes() -> None:
    assert announced(STARTED, LOST) == ("the run has failed", "r resumes from the beginning", "error")


def test_a_supervisor_starts_the_engine_again_unless_it_was_refused() -> None:
    again = ("the engine has ended", "its supervisor starts it again", "warning")
    assert announced(supervised(), LOST) == again
    assert announced(supervised(), Failed(problems=["out of memory"], refused=False)) == again
    given_up = announced(supervised(), Failed(problems=["20 restarts"], refused=False, by_supervisor=True))
    assert given_up == ("the run has failed", "r resumes from the beginning", "error")
    refused = announced(supervised(), Failed(problems=["no such preset"], refused=True))
    assert refused == ("the run has failed", "r resumes from the beginning", "error")


def test_the_next_attempt_names_the_process_that_was_lost() -> None:
    begun = supervised(LostProcess(process=1, why="its process was ended by SIGKILL"))
    assert announced(STARTED, begun) == ("resuming", "process 1 was lost: its process was ended by SIGKILL", "warning")
