"""Compilers for devices that are not here: slots that all plans on a machine share, and plans for GPUs.

Compilations for GPUs need the extra `gpu-compiler`.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from shardtui.engine.base.machine import most_compilations
from shardtui.engine.hlo.traffic import Flow
from shardtui.engine.planning import compilers
from shardtui.engine.planning.compilers import slot
from shardtui.engine.planning.networks import by_network
from shardtui.engine.planning.ranking import network_seconds
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.run_directory import plan_cache

from ..conftest import SHARDTUI

HOLD = """
from shardtui.engine.planning.compilers import slot
with slot(print):
    print("held", flush=True)
    input()
"""
LONG = 60.0


def hold() -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_compilation_waits_for_those_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    holders = [hold() for _ in range(most_compilations())]
    begun, told = threading.Event(), list[bool]()

    def compile_something() -> None:
        with slot(told.append):
            begun.set()

    thread = threading.Thread(target=compile_something)
    thread.start()
    try:
        assert not begun.wait(1.0)
        assert told == [True]
        holders[-1].kill()
        assert begun.wait(LONG)
        assert told == [True, False]
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
        thread.join(LONG)


def test_where_no_slot_can_be_kept_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan_cache().mkdir(parents=True)
    (plan_cache() / "slots").touch()
    told: list[bool] = []
    with slot(told.append), slot(told.append):
        assert not told


HOSTS = load_topology("h100:2x8")
MESH = {"data": 2, "model": 8}


def reduction(*axes: str) -> Flow:
    return Flow(kind="all-reduce", axes=list(axes), count=1, bytes_per_device=0, bytes_known=0, bytes_sent=9_000_000)


@pytest.mark.parametrize(
    ("axes", "network", "seconds"),
    [
        (["model"], "nvlink", 9e6 / 450e9),
        (["data"], "network", 9e6 / 50e9),
        (["data", "model"], "network", 9e6 / 8 / 50e9 + 9e6 / 450e9),
    ],
)
def test_a_collective_takes_the_time_of_its_slowest_network(axes: list[str], network: str, seconds: float) -> None:
    """The eight GPUs of a host share what crosses hosts."""
    (flow,) = by_network([reduction(*axes)], MESH, HOSTS)
    assert flow.network == network
    assert network_seconds([flow], HOSTS, MESH) == pytest.approx(seconds)


@pytest.mark.slow
@pytest.mark.skipif(bool(compilers.missing(HOSTS)), reason="needs the extra gpu-compiler; `.ci/run` has it")
@pytest.mark.parametrize(
    "name", ["a100:1x8", pytest.param("h100:2x8", marks=pytest.mark.core), "h200:1x8", "b200:1x8", "gb200:2x4"]
)
def test_each_gpu_is_compiled_for_without_one(name: str) -> None:
    command = [*SHARDTUI, "plan", "--topology", name, "--preset", "fsdp-tp2", "--set", "layers=2", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    (row,) = report["rows"]
    assert (report["topology"], report["slices"], row["problems"]) == (name, 1, [])
    compiled, estimate = row["compiled"], row["estimate"]
    assert compiled["capacity_bytes"] == load_topology(name).chip.memory
    assert compiled["peak_bytes"] > compiled["argument_bytes"] == estimate["argument_bytes"]
    sent = {tuple(flow["axes"]): flow["network"] for flow in compiled["collectives"] if flow["bytes_sent"] > 10_000}
    domains = load_topology(name).domains
    assert sent == {("model",): "nvlink", ("fsdp",): "nvlink" if domains == 1 else "network"}
