"""The time that several processes spend on agreeing what to do next: `python tests/bench/run.py hosts`.

Processes make steps of a known length and agree before some of them, as those of a run do; each measures the fraction
of time that it spends on agreeing. For all but process 0 that includes the wait for process 0.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from shardtui.engine.distributed.jax_cluster import JaxCluster
from shardtui.engine.distributed.joining import connect
from shardtui.engine.distributed.seal import Seal
from shardtui.engine.spec.config import Membership

from ..conftest import tiny_config
from ..suite import ROOT
from .figure import Figure, at_most

STEP_SECONDS = (0.001, 0.01, 0.1)
SECONDS = 6.0
REPEATS = 3
COUNT = 4


def run() -> Iterator[Figure]:
    """Measures that fraction for steps of each length."""
    repeats = [_parts(COUNT) for _ in range(REPEATS)]
    for length in STEP_SECONDS:
        parts = [max(part[str(length)] for part in processes) for processes in repeats]
        name = f"agreements of {COUNT} processes ÷ steps of {1e3 * length:g} ms"
        yield at_most(0.01, name, parts, "×", "the steps alone")


def _parts(count: int) -> list[dict[str, float]]:
    """Returns for each process the fraction of time by the seconds of a step."""
    coordinator = f"unix:{tempfile.mkdtemp(prefix='shardtui-', dir='/tmp')}/coordinator"
    command = [sys.executable, "-m", "tests.bench.hosts", coordinator, str(count)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    workers = [subprocess.Popen([*command, str(number)], **options) for number in range(count)]
    return [json.loads(worker.communicate()[0]) for worker in workers]


def _work(coordinator: str, count: str, number: str) -> dict[str, float]:
    connect(Membership(coordinator=coordinator, processes=int(count), process=int(number)), tiny_config())
    cluster = JaxCluster(Seal(b"the secret of a run"), stop=lambda: None, lost=lambda *_: None)
    found = {str(length): _part(cluster, length) for length in STEP_SECONDS}
    cluster.close()
    return found


def _part(cluster: JaxCluster, length: float) -> float:
    commands_at, agreeing = 0, 0.0
    cluster.broadcast(lambda: 1, int)
    began = time.perf_counter()
    for number in range(round(SECONDS / length)):
        if number == commands_at:
            before = time.perf_counter()
            commands_at = number + cluster.broadcast(lambda: cluster.stride(length), int)
            agreeing += time.perf_counter() - before
        until = began + agreeing + (number + 1) * length
        time.sleep(max(0.0, until - time.perf_counter()))
    return agreeing / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(_work(*sys.argv[1:])))
