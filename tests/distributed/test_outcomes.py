"""A joint attempt of several processes has the same outcome in each. Real processes, without devices."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jax.errors import JaxRuntimeError
from shardtui.engine.base.user_error import UserError
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.jax_cluster import JaxCluster, _is_own
from shardtui.engine.distributed.joining import connect
from shardtui.engine.distributed.outcomes import Damaged, Failure, Stranded
from shardtui.engine.distributed.seal import Seal
from shardtui.engine.spec.config import Membership

from ..conftest import tiny_config

ERRORS = {
    "memory": MemoryError(),
    "damaged": Damaged("its bytes are others"),
    "refused": UserError("no such preset"),
    "disk": OSError(28, "No space left on device"),
}
CASES = [
    (["", ""], None),
    (["", "memory"], ["Failure", "process 1: out of memory on this machine (MemoryError)"]),
    (["damaged", "memory"], ["Failure", "process 0: its bytes are others"]),
    (["damaged", ""], ["Damaged", "process 0: its bytes are others"]),
    (["refused", "damaged"], ["Damaged", "process 0: no such preset"]),
    (["", "refused"], ["UserError", "process 1: no such preset"]),
]


def test_all_processes_raise_the_same() -> None:
    for attempts, agreement in _answers("attempts"):
        for (_, expected), raised in zip(CASES, attempts, strict=True):
            assert raised == expected or (raised[0] == expected[0] and raised[1].startswith(expected[1]))
        assert agreement[0] == "Failure", "process 0 alone has met it"
        assert agreement[1].startswith("the disk is full (No space left on device): free some space")


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_while_others_hang_in_a_collective_is_reported_and_ends_all(failing: int) -> None:
    found = _answers(f"collective-{failing}")
    assert found[failing] == ["Stranded", "ValueError: no data (lm.py:7)"]
    assert found[1 - failing] == ["lost", {str(failing): "ValueError: no data (lm.py:7)"}]


def test_a_process_that_is_lost_before_all_have_met_is_reported_alone() -> None:
    cluster: Any = SimpleNamespace(statuses=list, _name="process {}".format)
    assert JaxCluster.loss_report(cluster, {1: "no data"}) == ["process 1 failed after step 0: no data"]


def test_a_single_process_raises_the_same_kinds() -> None:
    with pytest.raises(Failure, match="out of memory"):
        Cluster().run_on_all(lambda: _raised("memory"))
    with pytest.raises(Damaged):
        Cluster().run_on_all(lambda: _raised("damaged"))
    with pytest.raises(UserError):
        Cluster().broadcast(lambda: _raised("refused"), None)


def _answers(case: str) -> list[Any]:
    coordinator = f"unix:{tempfile.mkdtemp(prefix='shardtui-', dir='/tmp')}/coordinator"
    command = [sys.executable, "-m", "tests.distributed.test_outcomes", coordinator, case]
    workers = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for number in range(2)
    ]
    return [json.loads(worker.communicate(timeout=240)[0]) for worker in workers]


def _work(coordinator: str, case: str, number: int) -> Any:
    connect(Membership(coordinator=coordinator, processes=2, process=number), tiny_config())
    lost: list[Any] = []
    cluster = JaxCluster(Seal(b"the secret of a run"), stop=lambda: None, lost=lambda _, gone: lost.append(gone))
    cluster.meet()
    cluster.hosts = []  # their names and pids differ between runs
    if case == "attempts":
        together = [
            _outcome(lambda named=named: cluster.run_on_all(lambda: _raised(named[number]))) for named, _ in CASES
        ]
        found: Any = [together, _outcome(lambda: cluster.broadcast(lambda: _raised("disk"), None))]
    elif case.endswith(str(number)):
        try:
            cluster.run_on_all(_fails, has_collectives=True)
        except Stranded as error:
            found = ["Stranded", *error.problems]
            cluster.fail(error)
    else:
        while not lost:  # as in a collective that the other process never enters
            time.sleep(0.1)
        found = ["lost", lost[0]]
    cluster.close()
    return found


def _outcome(attempt: Any) -> list[str] | None:
    try:
        attempt()
    except (UserError, Damaged, Failure) as error:
        return [type(error).__name__, *error.problems]
    return None


def _raised(name: str) -> None:
    if name:
        raise ERRORS[name]


def _fails() -> None:
    raise ValueError("no data (lm.py:7)")


@pytest.mark.parametrize(
    ("cause", "is_own"),
    [
        (JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), False),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), True),
        (ValueError("no data"), True),
    ],
)
def test_a_failed_collective_may_be_the_fault_of_a_process_that_was_lost(cause: Exception, is_own: bool) -> None:
    """Also if the failure happened in a save, and the others did not report how theirs ended."""
    stranded = Stranded(str(cause))
    stranded.__cause__ = cause
    assert _is_own(cause) is is_own
    assert _is_own(stranded) is is_own


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
