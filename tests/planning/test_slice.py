"""What the TPU compiler makes for slices, and the devices that it describes. Needs the extra `tpu`, no TPU."""

import json
import subprocess
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import msgspec
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.spec.topology import Topology, load_topology

from ..conftest import SHARDTUI

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it"),
]


@pytest.mark.core
def test_a_slice_is_planned_without_one() -> None:
    command = [*SHARDTUI, "plan", "--topology", "v5e:2x4", "--preset", "fsdp-tp2", "--set", "layers=2", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(run.stdout)["rows"]
    compiled, estimate = row["compiled"], row["estimate"]
    assert row["problems"] == []
    assert compiled["peak_bytes"] > compiled["argument_bytes"] > estimate["argument_bytes"], "small arrays are padded"
    assert {tuple(flow["axes"]) for flow in compiled["collectives"]} >= {("fsdp",), ("model",)}


def kinds(topology: Topology) -> set[str]:
    """Returns the collectives that gather a kernel of GPT-3 whose rows are split over all chips."""
    mesh = build_mesh({"fsdp": topology.devices}, find_slice(topology))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ()))
    kernel = jax.ShapeDtypeStruct((12_288, 49_152), jnp.bfloat16, sharding=split)
    compiled = jax.jit(lambda kernel: kernel * 2, out_shardings=whole).lower(kernel).compile()
    return {found.kind for found in inventory(parse(compiled.as_text() or ""), dict(mesh.shape))}


@pytest.mark.parametrize("name", ["v4:4x4x4", "v5p:4x4x4"])
def test_wraparound_links_decide_how_a_kernel_is_gathered(name: str) -> None:
    closed = load_topology(name)
    without = msgspec.structs.replace(closed, chip=msgspec.structs.replace(closed.chip, closes=8))
    assert (closed.rings, without.rings) == ((True,) * 3, (False,) * 3)
    assert (kinds(closed), kinds(without)) == ({"all-gather"}, {"all-reduce"})


@pytest.mark.parametrize(
    "name", ["v4:2x2x2", "v5e:2x4", "v5e:16x16", "v6e:4x16", "tpu7x:2x2x1", "2*v5e:2x4", "2*tpu7x:2x2x1"]
)
def test_a_slice_has_its_chips(name: str) -> None:
    """The compiler wants three dims also where a slice has two."""
    topology = load_topology(name)
    assert len(find_slice(topology)) == topology.devices


def test_devices_are_in_hybrid_order() -> None:
    """Slice after slice, and each slice as if it were alone: what `mesh_utils.create_hybrid_device_mesh` aims at."""
    devices = find_slice(load_topology("2*v5e:2x4"))
    assert [device.slice_index for device in devices] == [0] * 8 + [1] * 8
    alone = [tuple(device.coords) for device in find_slice(load_topology("v5e:2x4"))]
    assert [tuple(device.coords) for device in devices] == alone * 2


def test_the_two_devices_of_a_chip_are_next_to_each_other() -> None:
    devices = find_slice(load_topology("tpu7x:2x2x1"))
    assert [(tuple(device.coords), device.core_on_chip) for device in devices[:4]] == [
        *(((0, 0, 0), core) for core in (0, 1)),
        *(((0, 1, 0), core) for core in (0, 1)),
    ]
