"""A switch changes no bit of the state, and a failed switch leaves the old state intact."""

import itertools
import random
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.program.program import Program, compile_initial_state
from shardtui.engine.program.reshard import SwitchError, Transfers, bytes_moved, move_state

from ..conftest import step
from ..programs import Programs

LAYOUTS = ("dp", "tp", "fsdp-tp2", "fsdp-tp2-explicit", "hsdp", "dp-tp2-pp2", "sp2")


def on_host(state: TrainState) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def state(task: Task, programs: dict[str, Program]) -> TrainState:
    """A state under `dp`, after a step, so that no array is zero."""
    return step(compile_initial_state(programs["dp"].placement)(), programs["dp"], steps=1)


def move_between_all(state: TrainState, programs: list[Program]) -> None:
    transfers = Transfers()
    expected = on_host(state)
    for source, target in itertools.permutations(programs, 2):
        moved = move_state(transfers.move(state, source.placement.state_shardings), source, target, transfers)
        shardings = jax.tree.leaves(target.placement.state_shardings)
        assert [leaf.sharding for leaf in jax.tree.leaves(moved)] == shardings
        for leaf, value in zip(on_host(moved), expected, strict=True):
            assert leaf.tobytes() == value.tobytes(), (source.name, target.name)
    kept = [
        transfers.prepare(state, source.placement.state_shardings, programs[-1].placement.state_shardings)
        for source in programs
    ]
    assert kept == [0] * len(programs)


@pytest.mark.slow
def test_switches_between_all_kinds_of_layouts(state: TrainState, programs: Programs) -> None:
    move_between_all(state, [*map(programs.layout, LAYOUTS)])


@pytest.mark.core
def test_switches_to_every_preset_and_back(state: TrainState, programs: Programs) -> None:
    for name in programs.keys() - set(LAYOUTS):
        move_between_all(state, [*map(programs.layout, ("fsdp-tp2", name))])


@pytest.mark.slow
def test_switches_with_a_permuted_device_order(state: TrainState, task: Task, programs: Programs) -> None:
    devices = random.Random(4).sample(jax.devices(), 8)
    permuted = [programs.layout(name, devices) for name in ("dp", "fsdp", "tp", "hsdp")]
    move_between_all(jax.device_put(state, permuted[0].placement.state_shardings), permuted)


def test_a_failed_switch_leaves_the_state_and_a_move_may_free_it(
    state: TrainState, programs: dict[str, Program]
) -> None:
    source, target = programs["dp"], programs["fsdp-tp2"]
    before = on_host(state)
    broken = replace(target, digest=lambda state: target.digest(state).at[3].add(1))
    with pytest.raises(SwitchError, match=f"1 of {len(before)} arrays changed"):
        move_state(state, source, broken, Transfers())
    assert [a.tobytes() for a in on_host(state)] == [b.tobytes() for b in before]
    move_state(state, source, target, Transfers())
    transfers, expected = Transfers(), on_host(state)
    shardings = [programs[name].placement.state_shardings for name in ("dp", "fsdp-tp2")]
    source = transfers.move(transfers.move(state, shardings[1]), shardings[0])  # a copy
    moved = transfers.move(source, shardings[1], free_source=True)
    for leaf, here, there in zip(*map(jax.tree.leaves, (source, *shardings)), strict=True):
        assert leaf.is_deleted() != here.is_equivalent_to(there, leaf.ndim)
    for leaf, value in zip(on_host(moved), expected, strict=True):
        np.testing.assert_array_equal(leaf, value)


def test_bytes_moved_are_those_that_devices_did_not_hold() -> None:
    mesh = build_mesh({"a": 2, "b": 4}, jax.devices())
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    replicated, rows, columns = (
        NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("a"), PartitionSpec(None, "a"))
    )
    assert bytes_moved([x], [replicated], [rows]) == 0
    assert bytes_moved([x], [rows], [replicated]) == 8 * 4 * 8 * 4  # each of 8 devices lacks half of 64 elements
    assert bytes_moved([x], [rows], [columns]) == 8 * 4 * 4 * 4
    assert bytes_moved([x], [rows], [rows]) == 0
