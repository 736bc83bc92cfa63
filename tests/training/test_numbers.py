"""The numbers of all arrays in a run: at the steps that it is told, on request, and after a switch."""

import math
from itertools import chain
from pathlib import Path

import pytest
from shardtui.engine.models.array import gradient_name
from shardtui.engine.models.task import Task
from shardtui.engine.spec.config import AnomalyConfig, ScheduledSwitch
from shardtui.engine.wire.commands import MeasureNumbers, Pause, Resume
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import NumbersMeasured, Paused, StepsDone, Switched, TrainingStarted
from shardtui.engine.wire.run_directory import find

from ..command import answered
from ..conftest import SETTINGS
from ..programs import Programs
from .test_loop import losses, named, run


def gradient_norm(task: Task, event: NumbersMeasured) -> float:
    """Returns the norm of the gradient from the root mean squares of its parts."""
    elements = {gradient_name(array.names[0]): math.prod(array.shape) for array in task.arrays}
    gradients = [array for array in event.arrays if array.kind == "gradient"]
    return math.sqrt(sum(rms**2 * elements[each.name] / len(each.rms) for each in gradients for rms in each.rms))


@pytest.mark.core
def test_arrays_are_measured_on_request_while_paused(task: Task, programs: Programs, tmp_path: Path) -> None:
    answers = {TrainingStarted: Pause(), Paused: MeasureNumbers(), NumbersMeasured: Resume()}
    events = run(task, programs, tmp_path, answer=lambda event: answers.get(type(event)))
    (found,) = named(events, NumbersMeasured)
    assert (found.step, found.preset, found.problem) == (1, "dp", None)
    first = named(events, StepsDone)[0]
    assert gradient_norm(task, found) == pytest.approx(first.metrics["grad_norm"][0], rel=1e-4)


@pytest.mark.core
def test_arrays_are_measured_at_the_given_steps_and_no_loss_changes(
    task: Task, programs: Programs, tmp_path: Path
) -> None:
    switches = ScheduledSwitch(3, "fsdp-tp2"), ScheduledSwitch(5, "hsdp")
    plain = losses(run(task, programs, tmp_path / "plain", *switches, anomalies=AnomalyConfig(numbers_every=0)))
    events = run(task, programs, tmp_path / "measured", *switches, anomalies=AnomalyConfig(numbers_every=2))
    found = [(each.step, each.preset, each.problem) for each in named(events, NumbersMeasured)]
    assert found == [(2, "dp", None), (4, "fsdp-tp2", None), (6, "hsdp", None)]
    assert losses(events) == plain


@pytest.mark.core
def test_arrays_are_measured_under_the_next_preset_if_a_switch_comes_first(
    task: Task, programs: Programs, tmp_path: Path
) -> None:
    answers = {TrainingStarted: MeasureNumbers(), Switched: Pause(), NumbersMeasured: Resume()}
    switch = ScheduledSwitch(1, "fsdp-tp2")
    events = run(task, programs, tmp_path, switch, answer=lambda event: answers.get(type(event)))
    assert [(each.preset, each.problem) for each in named(events, NumbersMeasured)] == [("fsdp-tp2", None)]


@pytest.mark.core
def test_a_resumed_run_measures_at_the_same_steps(home: Path) -> None:
    for start in (("--run=resumed", *SETTINGS, "--steps=7"), ("--resume=resumed", "--steps=11")):
        answered("train", *start, "--numbers-every=5")
    events = [*chain.from_iterable(LogReader(find("resumed").events).read())]
    assert [event.step for event in named(events, NumbersMeasured)] == [5, 10]
