"""Compilers for devices that are not here: slots that all plans on a machine share, and plans for GPUs.

Compilations for GPUs need the extra `gpu-compiler`.
"""

import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.base.machine import most_compilations
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.step_cost import network_seconds
from shardtui.engine.hlo.traffic import Flow
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.planning import compilers
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.planning.compilers import slot
from shardtui.engine.planning.networks import with_networks
from shardtui.engine.spec.topology import Topology, load_topology
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
    (flow,) = with_networks([reduction(*axes)], MESH, HOSTS)
    assert flow.network == network
    assert network_seconds([flow], HOSTS, MESH) == pytest.approx(seconds)


def compiled(*arguments: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Plans `fsdp-tp2` for two layers: the report, and the only row's compiled cost and estimate."""
    command = [*SHARDTUI, "plan", *arguments, "--preset", "fsdp-tp2", "--set", "layers=2", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    (row,) = report["rows"]
    assert row["problems"] == []
    return report, row["compiled"], row["estimate"]


@pytest.mark.slow
@pytest.mark.skipif(bool(compilers.missing(HOSTS)), reason="needs the extra gpu-compiler; `.ci/run` has it")
@pytest.mark.parametrize("name", ["a100:1x8", pytest.param("h100:2x8", marks=pytest.mark.core), "gb200:2x4"])
def test_each_gpu_is_compiled_for_without_one(name: str) -> None:
    report, found, estimate = compiled("--topology", name)
    topology = load_topology(name)
    assert (report["topology"], report["slices"], found["capacity_bytes"]) == (name, 1, topology.chip.memory)
    assert found["peak_bytes"] > found["argument_bytes"] == estimate["argument_bytes"]
    sent = {tuple(flow["axes"]): flow["network"] for flow in found["collectives"] if flow["bytes_sent"] > 10_000}
    assert sent == {("model",): "nvlink", ("fsdp",): "nvlink" if topology.domains == 1 else "network"}


def tpu(test: Any) -> Any:
    """Marks a test that needs the TPU compiler."""
    missing = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
    return pytest.mark.slow(missing(test))


@tpu
@pytest.mark.core
def test_compilers_for_devices_that_are_not_there_print_nothing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    run = subprocess.run([*SHARDTUI, "presets"], capture_output=True, text=True, env=environment, timeout=300)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.core
def test_a_slice_is_planned_without_one() -> None:
    """`gpt2`, because its kernels are large enough for windowed products, which the step must not have."""
    _, found, estimate = compiled("--topology", "v5e:2x4", "--model", "gpt2")
    assert found["peak_bytes"] > found["argument_bytes"] > estimate["argument_bytes"], "small arrays are padded"
    assert {tuple(flow["axes"]) for flow in found["collectives"]} >= {("fsdp",), ("model",)}
    assert "collective-permute" not in {flow["kind"] for flow in found["collectives"]}


def kinds(topology: Topology) -> set[str]:
    """Returns the collectives that gather a kernel of GPT-3 whose rows are split over all chips."""
    mesh = build_mesh({"fsdp": topology.devices}, find_slice(topology))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ()))
    kernel = jax.ShapeDtypeStruct((12_288, 49_152), jnp.bfloat16, sharding=split)
    text = jax.jit(lambda kernel: kernel * 2, out_shardings=whole).lower(kernel).compile().as_text()
    return {found.kind for found in inventory(parse(text or ""), dict(mesh.shape))}


@tpu
@pytest.mark.parametrize("name", ["v4:4x4x4", "v5p:4x4x4"])
def test_wraparound_links_decide_how_a_kernel_is_gathered(name: str) -> None:
    closed = load_topology(name)
    without = msgspec.structs.replace(closed, chip=msgspec.structs.replace(closed.chip, closes=8))
    assert (closed.rings, without.rings) == ((True,) * 3, (False,) * 3)
    assert (kinds(closed), kinds(without)) == ({"all-gather"}, {"all-reduce"})


@tpu
@pytest.mark.parametrize(
    "name", ["v4:2x2x2", "v5e:2x4", "v5e:16x16", "v6e:4x16", "tpu7x:2x2x1", "2*v5e:2x4", "2*tpu7x:2x2x1"]
)
def test_a_slice_has_its_chips(name: str) -> None:
    """The compiler wants three dims also where a slice has two."""
    topology = load_topology(name)
    assert len(find_slice(topology)) == topology.devices


@tpu
def test_devices_are_in_hybrid_order_and_the_two_of_a_chip_next_to_each_other() -> None:
    """Slice after slice, and each slice as if it were alone: what `mesh_utils.create_hybrid_device_mesh` aims at."""
    devices = find_slice(load_topology("2*v5e:2x4"))
    assert [device.slice_index for device in devices] == [0] * 8 + [1] * 8
    alone = [tuple(device.coords) for device in find_slice(load_topology("v5e:2x4"))]
    assert [tuple(device.coords) for device in devices] == alone * 2
    devices = find_slice(load_topology("tpu7x:2x2x1"))[:4]
    places = [((0, 0, 0), 0), ((0, 0, 0), 1), ((0, 1, 0), 0), ((0, 1, 0), 1)]
    assert [(tuple(device.coords), device.core_on_chip) for device in devices] == places
