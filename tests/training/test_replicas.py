"""Replicas of arrays are equal bit by bit under every preset, and a device that differs is named."""

import random

import jax
import msgspec
import numpy as np
import pytest
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import (
    Program,
    StateFunction,
    compile_initial_state,
    compile_program,
    shard_digest_function,
)
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.device_check import Differing, differing, first_holders, rows_of

from ..conftest import BATCHES, WIDE, step, tiny_config
from ..flips import flipped, random_flip, unequal_replicas
from ..programs import KINDS, OF_EXPERTS

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("dp", "dp-tp2", "hsdp", "fsdp")]


def words_of(state: TrainState, digests: StateFunction) -> np.ndarray:
    """Returns uint64 [devices, leaves]."""
    rows = rows_of(digests(state))
    return np.stack([np.frombuffer(rows[place], np.uint64) for place in range(len(rows))])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", *OF_EXPERTS])
def test_replicas_of_a_mixture_are_equal_after_steps(name: str) -> None:
    mixture = msgspec.structs.replace(WIDE, layers=1, experts=8, experts_per_token=2, dropout=0.1)
    task = Task(tiny_config(model=mixture, training=BATCHES), "cpu")
    program = compile_program(task, place(task, load_preset(name), jax.devices()))
    assert not unequal_replicas(step(compile_initial_state(task, program.placement)(), program, 3))


@pytest.mark.parametrize("name", ["dp-tp2-pp2", *SLOW])
def test_what_was_flipped_is_named(task: Task, programs: dict[str, Program], name: str) -> None:
    """Without replicas nothing can be found; of two, either may be wrong; of more, the device is named."""
    placement, chance, ends = programs[name].placement, random.Random(0), set()
    state, first = compile_initial_state(task, placement)(), first_holders(jax.tree.leaves(placement.state_shardings))
    digests = shard_digest_function(placement.abstract_state(task))
    assert differing(words_of(state, digests), first) is None
    for _ in range(20):
        flip = random_flip(state, chance)
        found = differing(words_of(flipped(state, flip), digests), first)
        replicas = np.flatnonzero(first[:, flip.leaf] == first[flip.device, flip.leaf]).tolist()
        certain = Differing([flip.device], [flip.leaf], True)
        ends.add(len(replicas))
        assert found == {1: None, 2: Differing(replicas, [flip.leaf], False)}.get(len(replicas), certain), flip
    assert ends == {"dp": {8}, "hsdp": {2, 8}, "dp-tp2": {4, 8}, "fsdp": {1, 8}, "dp-tp2-pp2": {2, 4, 8}}[name]


def test_first_holders_are_those_of_the_shardings(task: Task) -> None:
    """Compared with jax's own map of what each device holds."""
    for name in KINDS:
        placement = place(task, load_preset(name), jax.devices())
        first, devices = first_holders(jax.tree.leaves(placement.state_shardings)), list(placement.mesh.devices.flat)
        for leaf, array in enumerate(jax.tree.leaves(placement.abstract_state(task))):
            held = array.sharding.devices_indices_map(array.shape)
            indices = [held[device] for device in devices]
            assert first[:, leaf].tolist() == [indices.index(index) for index in indices]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([5, 5, 5, 5], None),
        ([5, 5, 7, 5], ([2], True)),
        ([9, 5, 5, 5], ([0], True)),
        ([5, 5, 7, 7], ([0, 1, 2, 3], False)),
        ([5, 6, 7, 5], ([0, 1, 2, 3], False)),
    ],
)
def test_most_replicas_decide(words: list[int], expected: tuple[list[int], bool] | None) -> None:
    found = differing(np.array(words, np.uint64)[:, None], np.zeros((4, 1), int))
    assert found == (expected and Differing(expected[0], [0], expected[1]))


def test_an_array_with_more_replicas_decides_for_pairs() -> None:
    """Device 1 differs in an array that all four hold, and so in one that two hold each."""
    words = np.array([[5, 3], [6, 4], [5, 8], [5, 8]], np.uint64)
    first = np.array([[0, 0], [0, 0], [0, 2], [0, 2]])
    assert differing(words, first) == Differing([1], [0, 1], True)
