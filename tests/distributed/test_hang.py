"""Which process is stuck, and which waits for it, from what each of them has reported."""

import pytest
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.hang import diagnose_hang, hang_words
from shardtui.engine.wire.hosts import Activity, HostStatus


def in_collective(step: int = 7) -> Activity:
    where = "_read (step_reports.py:1)"
    return Activity(step=step, in_step=True, seconds=21.0, is_late=True, where=where, waits=True)


def in_batch(step: int = 7) -> Activity:
    return Activity(step=step, in_step=True, seconds=21.0, is_late=True, where="batch (lm.py:27)")


IN_TIME = Activity(step=7, in_step=True, seconds=1.0)
BEFORE_A_STEP = Activity(step=7, where="read (sealed_store.py:1)", waits=True)
SAVES = Activity(step=7)


def diagnosed(*activities: Activity) -> list[HostStatus]:
    return diagnose_hang([HostStatus(number, 6, 0, activity=activity) for number, activity in enumerate(activities)])


@pytest.mark.parametrize(
    ("activities", "expected"),
    [
        ((in_collective(), in_batch()), ["waiting", "stuck"]),
        ((in_collective(8), in_batch(), in_collective()), ["waiting", "stuck", "waiting"]),
        ((in_batch(8), in_batch(), in_batch()), ["waiting", "stuck", "stuck"]),
        ((in_collective(8), in_collective()), ["waiting", "stuck"]),
        ((BEFORE_A_STEP, in_batch()), ["waiting", "stuck"]),
        ((BEFORE_A_STEP, in_collective()), ["waiting", "stuck"]),
        ((in_collective(), in_collective()), ["stuck", "stuck"]),
        ((in_collective(), IN_TIME), ["", ""]),
        ((in_collective(), SAVES), ["", ""]),
        ((BEFORE_A_STEP, BEFORE_A_STEP, SAVES), ["", "", ""]),
        ((), []),
    ],
)
def test_those_that_have_not_arrived_are_stuck_once_no_process_makes_progress(
    activities: tuple[Activity, ...], expected: list[str]
) -> None:
    assert [status.verdict for status in diagnosed(*activities)] == expected


def test_a_single_process_is_stuck_if_its_step_is_late() -> None:
    cluster = Cluster()
    found = [cluster.share(activity)[0].verdict for activity in (IN_TIME, in_batch(), in_collective())]
    assert found == ["", "stuck", "stuck"]


def test_the_words_name_place_step_and_who_waits() -> None:
    assert hang_words(diagnosed(in_collective(), in_batch())) == (
        "process 1 is stuck in batch (lm.py:27) in step 7 for 21 s; process 0 was waiting for it"
    )
    assert hang_words(diagnosed(in_collective(8), in_collective(8), in_collective())) == (
        "process 2 is stuck waiting for its devices in _read (step_reports.py:1) in step 7 for 21 s; "
        "processes 0, 1 were waiting for it"
    )
    assert hang_words(diagnosed(in_collective(), IN_TIME)) == ""
