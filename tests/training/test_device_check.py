"""A bit flips in a living run: the device is named, and the run goes back to a checkpoint from before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.distributed.outcomes import WrongDevices
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.device_check import coverage
from shardtui.engine.wire.commands import AnyCommand, Resume
from shardtui.engine.wire.events import CheckpointSaved, DevicesDiffer, Event, Paused, Restored, Switched

from ..conftest import least_config
from ..flips import Flip
from ..programs import Programs
from .test_loop import LocalRun, losses

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

        def answer(event: Event) -> AnyCommand | None:
            return Resume() if isinstance(event, Paused) else None

        checkpoints = CheckpointConfig(every_steps=changes.pop("save_every", 4), every_minutes=None)
        changes = {"steps": STEPS, "checkpoints": checkpoints, "check_devices": 3, "preset": presets[0]} | changes
        known = {preset: tiny[preset] for preset in presets}
        return LocalRun(tiny._task, known, tmp_path / name, chosen, answer, **changes)

    return new


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 3, 0), (7, 8, 4), (10, 12, 8))]


@pytest.mark.parametrize(("at_step", "found_after", "back_at"), [(5, 6, 4), *SLOW])
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


@pytest.mark.parametrize(("preset", "words"), [("dp", ""), ("hsdp", ""), ("fsdp", "under fsdp, 99.")])
def test_a_layout_without_replicas_is_said(task: Task, preset: str, words: str) -> None:
    config = msgspec.structs.replace(task.config, check_devices=3)
    found = coverage(config, task, load_preset(preset), jax.devices())
    assert len(found) == bool(words)
    assert words in "".join(found)
    assert coverage(task.config, task, load_preset(preset), jax.devices()) == []
