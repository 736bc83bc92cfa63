"""The processes in Mesh, and the attempts of a supervised run."""

import asyncio

import msgspec
from shardtui.engine.spec.attempt import Attempt, LostProcess
from shardtui.engine.wire.events import AnyEvent, EngineStarted, HostsMeasured, StepsDone
from shardtui.engine.wire.hosts import Activity, HostInfo, HostStatus
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState
from shardtui.tui.widgets.hosts_panel import LAST_ATTEMPTS, HostsPanel
from textual.app import App, ComposeResult

from ..conftest import READY, tiny_config

HOSTS = [HostInfo(process=number, processes=2, name=f"host-{number}", pid=100 + number) for number in range(2)]


class Panels(App[None]):
    def compose(self) -> ComposeResult:
        yield HostsPanel()


def shown(*events: AnyEvent, width: int = 120) -> list[str]:
    """Returns the lines of the panel; none if it is hidden."""
    state = RunState()
    for event in events:
        apply(state, event)

    async def scenario() -> list[str]:
        app = Panels()
        async with app.run_test(size=(width, 24)):
            panel = app.query_one(HostsPanel)
            panel.show_hosts(state)
            return [line.plain for line in panel.lines] if panel.display else []

    return asyncio.run(scenario())


def attempt(number: int) -> EngineStarted:
    lost = LostProcess(1, "its process was ended by SIGKILL") if number > 1 else None
    found = Attempt(number=number, supervisor=6, processes=2, of=2, lost=lost)
    return EngineStarted(protocol=1, pid=7, config=tiny_config(), attempt=found)


def test_a_single_process_that_was_never_lost_needs_no_panel() -> None:
    assert shown(attempt(1), READY) == []


def test_each_process_and_the_last_epochs_have_a_line() -> None:
    steps = StepsDone(step=8, losses=[1.0] * 8, step_seconds=[0.1] * 8, input_wait_seconds=None, time=5.0)
    several = [attempt(number) for number in range(2, LAST_ATTEMPTS + 3)]
    head, *lines = shown(attempt(1), steps, *several, msgspec.structs.replace(READY, hosts=HOSTS))
    assert "host" in head
    assert [line.split()[:2] for line in lines] == [
        ["0", "host-0"],
        ["1", "host-1"],
        *(["attempt", str(number)] for number in range(3, LAST_ATTEMPTS + 3)),
    ]
    assert lines[-1].endswith("after step 8: no step yet; process 1 lost: its process was ended by SIGKILL")


def test_a_stuck_process_and_those_that_wait_have_a_word_at_80_columns() -> None:
    named = [
        HostInfo(process=host.process, processes=2, name=f"t1v-n-1234abcd-w-{host.process}", pid=4_194_303)
        for host in HOSTS
    ]
    waits = HostStatus(0, 1_204_000, 9_990_000_000, activity=Activity(step=1_204_002), verdict="waiting")
    stuck = HostStatus(
        1, 1_204_000, 9_990_000_000, activity=Activity(step=1_204_001, where="batch (lm.py:27)"), verdict="stuck"
    )
    ready = msgspec.structs.replace(READY, hosts=named)
    _, *lines = shown(attempt(1), ready, HostsMeasured(hosts=[waits, stuck]), width=80)
    assert [line[-9:] for line in lines[:2]] == ["◌ waiting", "  ✗ stuck"]
    assert max(map(len, lines)) <= 78, "inside the border"
    assert lines[2] == "process 1: stuck in batch (lm.py:27), step 1,204,001"
    behind = msgspec.structs.replace(waits, verdict="", step=1_203_000)
    _, line, *_ = shown(attempt(1), ready, HostsMeasured(hosts=[behind, stuck]), width=80)
    assert line.endswith("! 1,000 behind")


def test_a_run_of_one_process_shows_its_attempts() -> None:
    assert [line.partition(":")[0] for line in shown(attempt(1), attempt(2), READY)] == ["attempt 2 after step 0"]
