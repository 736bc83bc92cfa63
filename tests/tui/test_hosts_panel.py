"""The processes in Mesh, the attempts of a supervised run, and what is announced of them."""

from msgspec.structs import replace
from shardtui.engine.spec.attempt import Attempt, LostProcess
from shardtui.engine.wire.events import AnyEvent, EngineLost, EngineStarted, Failed, HostsMeasured
from shardtui.engine.wire.hosts import Activity, HostInfo, HostStatus
from shardtui.tui.screens.mesh import LAST_ATTEMPTS, HostsPanel
from shardtui.tui.state.announcements import announcement
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState
from textual.app import App, ComposeResult

from ..conftest import READY
from ..recorded import started, steps

HOSTS = [HostInfo(process=number, processes=2, name=f"host-{number}", pid=100 + number) for number in range(2)]


class Panels(App[None]):
    def compose(self) -> ComposeResult:
        yield HostsPanel()


async def shown(*events: AnyEvent, width: int = 120) -> list[str]:
    """Returns the lines of the panel; none if it is hidden."""
    state, app = RunState(), Panels()
    for event in events:
        apply(state, event)
    async with app.run_test(size=(width, 24)):
        panel = app.query_one(HostsPanel)
        panel.show_hosts(state)
        return [line.plain for line in panel.lines] if panel.display else []


def attempt(number: int) -> EngineStarted:
    lost = LostProcess(1, "its process was ended by SIGKILL") if number > 1 else None
    return started(attempt=Attempt(number=number, supervisor=6, processes=2, of=2, lost=lost))


async def test_each_process_and_the_last_epochs_have_a_line() -> None:
    several = [attempt(number) for number in range(2, LAST_ATTEMPTS + 3)]
    head, *lines = await shown(attempt(1), steps(8, *[1.0] * 8, time=5.0), *several, replace(READY, hosts=HOSTS))
    assert "host" in head
    attempts = [["attempt", str(number)] for number in range(3, LAST_ATTEMPTS + 3)]
    assert [line.split()[:2] for line in lines] == [["0", "host-0"], ["1", "host-1"], *attempts]
    assert lines[-1].endswith("after step 8: no step yet; process 1 lost: its process was ended by SIGKILL")
    assert await shown(attempt(1), READY) == []
    assert [line.partition(":")[0] for line in await shown(attempt(1), attempt(2), READY)] == ["attempt 2 after step 0"]


async def test_a_stuck_process_and_those_that_wait_have_a_word_at_80_columns() -> None:
    named = [replace(host, name=f"t1v-n-1234abcd-w-{host.process}", pid=4_194_303) for host in HOSTS]
    waits = HostStatus(0, 1_204_000, 9_990_000_000, activity=Activity(step=1_204_002), verdict="waiting")
    activity = Activity(step=1_204_001, where="batch (lm.py:27)")
    stuck = replace(waits, process=1, activity=activity, verdict="stuck")
    ready = replace(READY, hosts=named)
    _, *lines = await shown(attempt(1), ready, HostsMeasured(hosts=[waits, stuck]), width=80)
    assert [line[-9:] for line in lines[:2]] == ["◌ waiting", "  ✗ stuck"]
    assert max(map(len, lines)) <= 78, "inside the border"
    assert lines[2] == "process 1: stuck in batch (lm.py:27), step 1,204,001"
    behind = replace(waits, verdict="", step=1_203_000)
    _, line, *_ = await shown(attempt(1), ready, HostsMeasured(hosts=[behind, stuck]), width=80)
    assert line.endswith("! 1,000 behind")


def announced(first: EngineStarted, event: EngineLost | Failed | EngineStarted) -> tuple[str, str, str]:
    """Returns title, last line and severity of the announcement of an event after a start."""
    state = RunState()
    apply(state, first)
    found = announcement(event, state, 0.0)
    return found.title, found.text.splitlines()[-1], found.severity


def test_a_supervisor_starts_the_engine_again_unless_it_was_refused_and_without_one_a_key_resumes() -> None:
    killed, failed = EngineLost(reason="killed"), ("the run has failed", "r resumes from the beginning", "error")
    again = ("the engine has ended", "its supervisor starts it again", "warning")
    assert announced(attempt(1), killed) == again
    assert announced(attempt(1), Failed(problems=["out of memory"], refused=False)) == again
    given_up = announced(attempt(1), Failed(problems=["20 restarts"], refused=False, by_supervisor=True))
    assert given_up == failed
    refused = announced(attempt(1), Failed(problems=["no such preset"], refused=True))
    assert refused == announced(started(), killed) == failed
    lost = "process 1 was lost: its process was ended by SIGKILL"
    assert announced(started(), attempt(2)) == ("resuming", lost, "warning")
