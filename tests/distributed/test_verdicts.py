"""Which process is stuck, and which waits for it, from what each of them has reported."""

import msgspec
import pytest
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.verdicts import judged, stuck_words, waiting_words
from shardtui.engine.wire.hosts import Activity, Doing, HostStatus

IN_COLLECTIVE = Activity(
    doing="step", step=7, seconds=21.0, is_late=True, where="_read (step_reports.py:1)", waits=True
)
IN_BATCH = Activity(doing="step", step=7, seconds=21.0, is_late=True, where="batch (lm.py:27)")
IN_TIME = Activity(doing="step", step=7, seconds=1.0)


def begun(step: int, activity: Activity) -> Activity:
    return msgspec.structs.replace(activity, step=step)


def verdicts(*activities: Activity, silent: tuple[int, ...] = ()) -> list[str]:
    statuses = [HostStatus(number, 6, 0, activity=activity) for number, activity in enumerate(activities)]
    return [status.verdict for status in judged(statuses, silent)]


def test_the_process_outside_a_collective_is_stuck() -> None:
    assert verdicts(IN_COLLECTIVE, IN_BATCH) == ["waiting", "stuck"]
    assert verdicts(begun(8, IN_COLLECTIVE), IN_BATCH, IN_COLLECTIVE) == ["waiting", "stuck", "waiting"]


def test_of_several_outside_those_that_have_begun_least_are_stuck() -> None:
    assert verdicts(begun(8, IN_BATCH), IN_BATCH, IN_BATCH) == ["waiting", "stuck", "stuck"]


def test_of_several_in_collectives_those_that_have_begun_least_are_stuck() -> None:
    assert verdicts(begun(8, IN_COLLECTIVE), IN_COLLECTIVE) == ["waiting", "stuck"]


def test_all_are_stuck_in_the_collective_of_one_step() -> None:
    assert verdicts(IN_COLLECTIVE, IN_COLLECTIVE) == ["stuck", "stuck"]


def test_nobody_is_stuck_while_one_is_in_time() -> None:
    assert verdicts(IN_COLLECTIVE, IN_TIME) == ["waiting", ""]
    assert verdicts(IN_TIME, IN_TIME) == ["", ""]
    assert verdicts() == []


@pytest.mark.parametrize("doing", ["starting", "compiling", "loading", "switching", "saving", "evaluating"])
def test_a_process_that_does_something_else_is_waited_for(doing: Doing) -> None:
    """However long that takes."""
    assert verdicts(IN_COLLECTIVE, Activity(doing=doing, step=7, seconds=1e6)) == ["waiting", ""]


def test_nobody_waits_in_a_run_that_is_paused() -> None:
    assert verdicts(Activity(doing="idle", step=7, seconds=1e6), IN_COLLECTIVE) == ["", ""]


def test_a_process_that_does_not_report_is_stuck_whatever_it_reported() -> None:
    assert verdicts(IN_COLLECTIVE, IN_TIME, IN_COLLECTIVE, silent=(1,)) == ["waiting", "stuck", "waiting"]


def test_a_single_process_is_stuck_if_its_step_is_late() -> None:
    cluster = Cluster()
    found = [cluster.share(activity)[0].verdict for activity in (IN_TIME, IN_BATCH, IN_COLLECTIVE)]
    assert found == ["", "stuck", "stuck"]


def test_the_words_name_place_step_and_who_waits() -> None:
    assert stuck_words(IN_BATCH) == "stuck in batch (lm.py:27) in step 7 for 21 s"
    assert stuck_words(IN_COLLECTIVE) == "stuck waiting for its devices in _read (step_reports.py:1) in step 7 for 21 s"
    assert stuck_words(IN_TIME) == "stuck in step 7: native code keeps Python from running"
    three = [HostStatus(number, 6, 0, activity=IN_COLLECTIVE) for number in range(3)]
    assert waiting_words(judged([*three, HostStatus(3, 6, 0, activity=IN_BATCH)])) == (
        "processes 0, 1, 2 were waiting for it"
    )
    assert waiting_words(judged(three)) == ""
