"""Replicas are equal bit by bit; where a bit flips in a run, the device is named, and the run goes back."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from shardtui.engine.distributed.outcomes import WrongDevices
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import (
    Program,
    StateFunction,
    compile_initial_state,
    compile_program,
    shard_digest_function,
)
from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.device_check import Differing, coverage, differing, first_holders, rows_of
from shardtui.engine.wire.events import CheckpointSaved, DevicesDiffer, Paused, Restored, Switched

from ..conftest import BATCHES, WIDE, least_config, step, tiny_config
from ..flips import Flip, flipped, random_flip, unequal_replicas
from ..programs import KINDS, OF_EXPERTS, Programs
from .test_loop import LocalRun, losses, resumed

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("dp", "dp-tp2", "hsdp", "fsdp")]


def words_of(state: TrainState, digests: StateFunction) -> np.ndarray:
    rows = rows_of(digests(state))
    return np.stack([np.frombuffer(rows[place], np.uint64) for place in range(len(rows))])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", *OF_EXPERTS])
def test_replicas_of_a_mixture_are_equal_after_steps(name: str) -> None:
    mixture = msgspec.structs.replace(WIDE, layers=1, experts=8, experts_per_token=2, dropout=0.1)
    task = Task(tiny_config(model=mixture, training=BATCHES), "cpu")
    program = compile_program(place(task, load_preset(name), jax.devices()))
    assert not unequal_replicas(step(compile_initial_state(program.placement)(), program, 3))


@pytest.mark.parametrize("name", ["dp-tp2-pp2", *SLOW])
def test_what_was_flipped_is_named(task: Task, programs: dict[str, Program], name: str) -> None:
    """Without replicas nothing can be found; of two, either may be wrong; of more, the device is named."""
    placement, chance, ends = programs[name].placement, random.Random(0), set()
    state, first = compile_initial_state(placement)(), first_holders(jax.tree.leaves(placement.state_shardings))
    digests = shard_digest_function(placement.abstract_state)
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
        for leaf, array in enumerate(jax.tree.leaves(placement.abstract_state)):
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


FLIP = Flip(leaf=3, device=5, element=7, bit=20)
STEPS = 12


@pytest.fixture(scope="module")
def tiny() -> Programs:
    return Programs(Task(least_config(), "cpu"))


@pytest.fixture
def run(tiny: Programs, tmp_path: Path) -> Callable[..., LocalRun]:
    """Makes runs of 12 steps with a checkpoint after every fourth, in which one bit flips after a step."""

    def new(
        flip: Flip | None, at_step: int = 0, name: str = "run", presets: tuple[str, ...] = ("dp",), **changes: Any
    ) -> LocalRun:
        left = [flip] * (flip is not None)

        def chosen(step: int, _: TrainState) -> Flip | None:
            return left.pop() if left and step == at_step else None

        checkpoints = CheckpointConfig(every_steps=changes.pop("save_every", 4), every_minutes=None)
        changes = {"steps": STEPS, "checkpoints": checkpoints, "check_devices": 3, "preset": presets[0]} | changes
        known = {preset: tiny[preset] for preset in presets}
        return LocalRun(tiny._task, known, tmp_path / name, chosen, resumed, **changes)

    return new


LATER = [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 3, 0), (7, 8, 4), (10, 12, 8))]


@pytest.mark.parametrize(("at_step", "found_after", "back_at"), [(5, 6, 4), *LATER])
def test_the_run_goes_back(run: Callable[..., LocalRun], at_step: int, found_after: int, back_at: int) -> None:
    """Found at the next comparison: every third step, before the checkpoint of every fourth, and after the last."""
    plain, hit = run(None, name="plain"), run(FLIP, at_step)
    assert plain.train() == hit.train() == STEPS
    assert not plain.named(DevicesDiffer)
    (found,) = hit.named(DevicesDiffer)
    assert (found.step, found.is_certain, len(found.arrays)) == (found_after, True, len(found.arrays) or 1)
    assert [(device.id, device.process) for device in found.devices] == [(5, 0)]
    assert found.problem.startswith(f"after step {found_after}, device 5 (cpu, process 0 on ")
    (paused,) = hit.named(Paused)
    assert f"went back to step {back_at}; resume to go on with all devices" in paused.problem
    assert [event.step for event in hit.named(Restored)] == [back_at] * (back_at > 0)
    assert losses(hit.events) == losses(plain.events)
    assert [event.step for event in hit.named(CheckpointSaved)] == [4, 8, 12]


@pytest.mark.slow
def test_a_switch_does_not_spread_what_is_wrong(run: Callable[..., LocalRun]) -> None:
    """The switch is put off: after the pause nobody asks for it again."""
    hit = run(FLIP, 4, presets=("dp", "fsdp"), switches=(ScheduledSwitch(5, "fsdp"),), save_every=None)
    hit.train()
    (found,) = hit.named(DevicesDiffer)
    assert found.step == 5
    assert not hit.named(Switched)


def test_a_supervised_run_ends_for_its_supervisor(run: Callable[..., LocalRun]) -> None:
    hit = run(FLIP, 5, is_supervised=True)
    with pytest.raises(WrongDevices, match="after step 6, device 5 ") as raised:
        hit.train()
    assert raised.value.devices == {0: [5]}


@pytest.mark.slow
def test_a_pair_does_not_say_which_is_wrong_and_none_is_left_out(run: Callable[..., LocalRun]) -> None:
    hit = run(FLIP, 4, presets=("hsdp",), save_every=None, is_supervised=True)
    with pytest.raises(WrongDevices, match="is wrong: these replicas differ in") as raised:
        hit.train()
    (found,) = hit.named(DevicesDiffer)
    assert (found.is_certain, len(found.devices), raised.value.devices) == (False, 2, {})
    assert 5 in [device.id for device in found.devices]


@pytest.mark.parametrize(("preset", "words"), [("dp", ""), ("hsdp", ""), ("fsdp", "under fsdp, 99.")])
def test_a_layout_without_replicas_is_said(task: Task, preset: str, words: str) -> None:
    checked = task.with_config(msgspec.structs.replace(task.config, check_devices=3))
    found = coverage(checked, load_preset(preset), jax.devices())
    assert len(found) == bool(words)
    assert words in "".join(found)
    assert coverage(task, load_preset(preset), jax.devices()) == []
