"""Spikes, steps that are not finite, and the numbers of all arrays: what a run measures, and when."""

import math
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.outcomes import Failure, Stranded
from shardtui.engine.models.array import gradient_name
from shardtui.engine.models.task import Task
from shardtui.engine.spec.config import AnomalyConfig, CheckpointConfig, ScheduledSwitch
from shardtui.engine.training import numbers
from shardtui.engine.training.nonfinite import NonfiniteExplainer
from shardtui.engine.training.spikes import Spikes
from shardtui.engine.wire.commands import MeasureNumbers, Pause, Resume
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import (
    CheckpointSaved,
    Explaining,
    NonfiniteExplained,
    NumbersMeasured,
    Paused,
    Spiked,
    StepsDone,
    Switched,
    TrainingStarted,
)
from shardtui.engine.wire.run_directory import find

from ..command import answered
from ..conftest import SETTINGS
from ..programs import Programs
from .test_loop import losses, named, run, tiny, tiny_programs

__all__ = ["tiny", "tiny_programs"]


def spikes_in(losses: list[float], norms: list[float]) -> list[Spiked]:
    spikes = Spikes()
    found = (
        spikes.add(step, {"loss": loss, "grad_norm": norm})
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    )
    return [spike for spike in found if spike]


def falling(steps: int, seed: int = 0) -> tuple[list[float], list[float]]:
    draw = random.Random(seed)
    losses = [2 + 4 * math.exp(-step / 200) + draw.gauss(0, 0.05) for step in range(steps)]
    return losses, [draw.lognormvariate(0, 0.3) for _ in range(steps)]


def test_a_noisy_course_that_falls_has_no_spike() -> None:
    assert [spike for seed in range(20) for spike in spikes_in(*falling(1000, seed))] == []


def test_a_spike_is_reported_once_with_what_rose_before_it() -> None:
    losses, norms = falling(600)
    norms[396:430] = [60.0] * 34
    losses[399:430] = [9.0] * 31
    first, second = spikes_in(losses, norms)
    assert (first.step, first.name, first.value) == (397, "grad_norm", 60.0)
    assert (second.step, second.name, second.rose_before) == (400, "loss", {"grad_norm": 397})
    assert 2 < second.usual < 4 and (9.0 - second.usual) / second.deviation > 10
    assert 0.5 < first.usual < 2 and 0.1 < first.deviation < 1
    assert second.line.endswith("before it: grad_norm since step 397")


def test_what_is_not_finite_or_constant_is_no_spike() -> None:
    losses = [1.0] * 50 + [math.nan, math.inf] + [1.05] * 50
    assert spikes_in(losses, [0.0] * len(losses)) == []


def test_a_run_that_pauses_after_a_spike_saves_what_is_due(
    tiny: Task, tiny_programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spike = Spiked(step=4, name="loss", value=9.0, usual=2.0, deviation=0.1, rose_before={})
    monkeypatch.setattr(Spikes, "add", lambda _, step, __: spike if step == 4 else None)
    anomalies, answers = AnomalyConfig(on_spike="pause"), {Paused: Resume()}
    events = run(tiny, tiny_programs, tmp_path, answer=lambda each: answers.get(type(each)), anomalies=anomalies)
    assert [event.problem for event in named(events, Paused)] == [spike.line]
    assert [event.step for event in named(events, CheckpointSaved)] == [2, 4, 6]


def recorded(name: str) -> list[Any]:
    return [*chain.from_iterable(LogReader(find(name).events).read())]


GOES_WRONG = Path(__file__).parents[2] / "docs/examples/goes_wrong.py"


@pytest.mark.parametrize(
    ("options", "start"),
    [
        pytest.param((), "from the start", marks=pytest.mark.core),
        pytest.param(("--checkpoint-every=100",), "from step 200", marks=pytest.mark.slow),
    ],
)
def test_the_run_pauses_before_the_step_and_says_why(home: Path, options: tuple[str, ...], start: str) -> None:
    model = f"--model={GOES_WRONG}:Regression"
    result = answered("train", model, "--batch-size=16", "--steps=300", "--run=bad", *options)
    assert result.returncode == 1
    assert "step 150: loss 278" in result.stderr, "the spike"
    assert f"step 250 is not finite: repeating {start} to find where it comes from" in result.stderr
    where = "first in `div` (goes_wrong.py:25): 1 of 16 elements NaN (batch 5) on device 2"
    assert f"paused at step 249: the loss of step 250 is not finite, {where}" in result.stderr
    events = recorded("bad")
    kinds = [Explaining, NonfiniteExplained, Paused]
    assert [type(event) for event in named(events, *kinds)] == kinds
    assert max(event.step for event in named(events, CheckpointSaved)) == 249, "the state before is kept"


@pytest.mark.core
def test_a_run_that_stops_at_its_last_step_keeps_the_state_before_it(home: Path) -> None:
    model = f"--model={GOES_WRONG}:Regression"
    result = answered("train", model, "--batch-size=16", "--steps=250", "--run=bad", "--on-nonfinite=stop")
    assert "first in `div` (goes_wrong.py:25)" in result.stderr
    assert "checkpoint of step 249" in result.stderr


def test_a_run_does_not_pause_while_others_wait_for_this_process_in_a_collective() -> None:
    def restore(*_: object) -> None:
        raise Stranded("the disk is full")

    tools: Any = SimpleNamespace(publish=lambda _: None)
    restorer, at, batches = (
        SimpleNamespace(restore=restore),
        SimpleNamespace(program=None, replace_with=None, done=3),
        None,
    )
    with pytest.raises(Stranded):
        NonfiniteExplainer(tools, restorer, batches)._explained(at, step=3, back=2, began=0.0)  # type: ignore[arg-type]


def test_each_process_goes_back_to_the_checkpoint_that_process_0_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may list the directory before process 0 has committed the last one."""

    class Follower(Cluster):
        def broadcast(self, decide: Any, kind: Any) -> Any:
            return 4 if kind is int else False

    saver = SimpleNamespace(finish=lambda: None, kept=lambda: [SimpleNamespace(step=2)])
    reports = SimpleNamespace(flush=lambda: None, nonfinite_step=7, step_seconds=0.1)
    tools, at, found = SimpleNamespace(saver=saver, cluster=Follower()), SimpleNamespace(reports=reports, origin=0), []
    explainer = NonfiniteExplainer(tools, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(explainer, "_explained", lambda _, step, back, began: found.append((step, back)))
    explainer.explain(at)  # type: ignore[arg-type]
    assert found == [(7, 4)]


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


def test_a_measurement_before_the_first_step_puts_off_no_other(
    tiny: Task, tiny_programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "EVERY", 1)
    answers = {TrainingStarted: Pause(), Paused: MeasureNumbers(), NumbersMeasured: Resume()}
    events = run(tiny, tiny_programs, tmp_path, answer=lambda event: answers.get(type(event)))
    first, second, *_ = named(events, NumbersMeasured)
    assert (first.step, first.problem, second.problem) == (1, None, None)


def test_a_measurement_that_fails_in_another_process_is_the_last_in_this_one(
    tiny: Task, tiny_programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for a decision about the next one, which the other one does not make."""

    def run_on_all(_: Cluster, attempt: Callable[[], Any], has_collectives: bool = False) -> Any:
        found = attempt()
        if has_collectives:
            raise Failure("process 1: out of memory")
        return found

    monkeypatch.setattr(Cluster, "run_on_all", run_on_all)
    settings = {"anomalies": AnomalyConfig(numbers_every=2), "checkpoints": CheckpointConfig(at_end=False)}
    events = run(tiny, tiny_programs, tmp_path, **settings)
    assert [(each.step, each.problem) for each in named(events, NumbersMeasured)] == [(2, "process 1: out of memory")]


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
    assert [event.step for event in named(recorded("resumed"), NumbersMeasured)] == [5, 10]
