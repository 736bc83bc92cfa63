"""The loop in this process: switches that run out of memory or disk, and traces of steps."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest
from etils import epath
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import read_corpus
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Scalars, Task, TrainState
from shardtui.engine.program.program import Program, shard_digest_function
from shardtui.engine.program.reshard import Transfers
from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.training.loop import Loop
from shardtui.engine.training.profiler import KEPT, Profiler, Request
from shardtui.engine.training.progress import Pausing
from shardtui.engine.training.step_reports import StepReports
from shardtui.engine.training.tools import Tools
from shardtui.engine.wire.commands import AnyCommand, Pause, Resume
from shardtui.engine.wire.events import (
    CheckpointSaved,
    Event,
    PartsMeasured,
    Paused,
    Profiled,
    ProfileFailed,
    Profiling,
    Restored,
    Resumed,
    StepsDone,
    Switched,
    SwitchFailed,
)
from shardtui.engine.wire.inbox import Inbox

from ..conftest import least_config
from ..flips import Flip, flipped
from ..loop_machine import LoopMachine, Shared
from ..programs import Known, Programs


@pytest.fixture(scope="module")
def tiny() -> Task:
    return Task(least_config(), "cpu")


@pytest.fixture(scope="module")
def tiny_programs(tiny: Task) -> Programs:
    return Programs(tiny)


class LocalRun:
    """A run of six steps in this process, with a checkpoint after every second one."""

    def __init__(
        self,
        task: Task,
        programs: Mapping[str, Program],
        folder: Path,
        flip: Callable[[int, TrainState], Flip | None] | None = None,
        answer: Callable[[Event], AnyCommand | None] = lambda _: None,
        is_supervised: bool = False,
        every: float | None = None,
        **changes: Any,
    ) -> None:
        """`flip` returns the bit that flips after a step, if any, from its number and the state; `answer` the command
        that is sent on an event. `every`: minutes between breakdowns. `changes`: to the task's config."""
        self.events: list[Event] = []
        self._flip, self._answer, self._inbox = flip, answer, Inbox()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text").write_text("What is split comes together. " * 100)
        settings = {"steps": 6, "checkpoints": CheckpointConfig(every_steps=2, every_minutes=None)} | changes
        config = msgspec.structs.replace(task.config, data=str(folder / "text"), **settings)
        corpus, cluster, wake = read_corpus(config.data), Cluster(), self._inbox.wake
        place = CheckpointDirectory(epath.Path(folder / f"checkpoints-{len(config.switches)}"))
        saver = Saver(place, config, task, corpus.describe(), cluster, self._publish, wake)
        batches = Batches(corpus, config.training.batch_size, config.training.seq_len, config.seed)
        profiler = Profiler(folder / "profile", self._publish, cluster, every)
        if flip:
            programs = {name: self._flipping(program, task) for name, program in programs.items()}
        compiler = Known(task, programs, wake=wake)
        tools = Tools(config, compiler, saver, profiler, cluster, self._inbox, self._publish, is_supervised)
        self._loop = Loop(tools, batches, batches)

    def fail(self, errors: Mapping[int, BaseException]) -> None:
        self._loop._batches._batches = Failing(self._loop._batches._batches, errors)  # type: ignore[assignment, arg-type]

    def train(self, profile: int | None = None) -> int:
        return self._loop.run(None, profile)

    def named(self, kind: type[Event]) -> list[Any]:
        return named(self.events, kind)

    def _publish(self, event: Event) -> None:
        self.events.append(event)
        if command := self._answer(event):
            self._inbox.put(command)

    def _flipping(self, program: Program, task: Task) -> Program:
        def step(state: TrainState, batch: Any) -> tuple[TrainState, Scalars]:
            state, scalars = program.step(state, batch)
            assert self._flip
            flip = self._flip(self._loop.at.begun + 1, state)
            return (flipped(state, flip) if flip else state), scalars

        by_device = shard_digest_function(program.placement.abstract_state)
        return replace(program, step=step, shard_digests=by_device)  # type: ignore[arg-type]


def run(
    task: Task,
    programs: Mapping[str, Program],
    folder: Path,
    *switch: ScheduledSwitch,
    profile: int | None = None,
    **changes: Any,
) -> list[Event]:
    made = LocalRun(task, programs, folder, switches=switch, **changes)
    assert made.train(profile) == 6
    return made.events


def named(events: list[Event], *kinds: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def losses(events: list[Event]) -> dict[int, float | None]:
    return {
        step: loss
        for event in named(events, StepsDone)
        for step, loss in enumerate(event.losses, event.step - len(event.losses) + 1)
    }


def exhausted(*_: Any) -> Any:
    return jax.block_until_ready(jax.jit(lambda: jnp.ones(2**46, jnp.float32))())


@pytest.mark.slow
def test_a_low_memory_switch_saves_first_and_restores_its_checkpoint_if_it_fails_half_way(
    task: Task, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses(run(task, programs, tmp_path))
    events = run(task, programs, tmp_path, ScheduledSwitch(3, "fsdp"), low_memory=True)
    reported = [(type(each), each.step) for each in named(events, CheckpointSaved, Switched)]
    assert reported[:3] == [(CheckpointSaved, 2), (CheckpointSaved, 3), (Switched, 3)]
    assert losses(events) == pytest.approx(plain, rel=1e-5)
    move, left = Transfers._move, iter(range(10))

    def until_memory_runs_out(*arguments: Any) -> jax.Array:
        return move(*arguments) if next(left, None) is not None else exhausted()

    monkeypatch.setattr(Transfers, "_move", until_memory_runs_out)
    events = run(task, programs, tmp_path / "again", ScheduledSwitch(3, "fsdp"), low_memory=True)
    (failed,) = named(events, SwitchFailed)
    assert "out of device memory" in failed.problems[0]
    assert [event.step for event in named(events, Restored)] == [3]
    assert losses(events) == plain


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_low_memory_switch_needs_its_save(
    tiny: Task, tiny_programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Saver, "_begin", full_disk)
    events = run(tiny, tiny_programs, tmp_path, ScheduledSwitch(3, "fsdp"), low_memory=True)
    (failed,) = named(events, SwitchFailed)
    assert "step 3 could not be saved" in failed.problems[0]
    assert sorted(losses(events)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_steps_are_traced_into_the_run_directory(task: Task, programs: Programs, tmp_path: Path) -> None:
    older = [tmp_path / f"profile/plugins/profile/{number}/x.xplane.pb" for number in range(KEPT)]
    for time, file in enumerate(older):
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (time, time))
    events = run(task, programs, tmp_path, profile=2)
    assert [type(event) for event in named(events, Profiling, Profiled, ProfileFailed)] == [Profiling, Profiled]
    (profiled,) = named(events, Profiled)
    assert (profiled.step, profiled.steps, profiled.preset) == (5, 2, "dp")
    assert profiled.breakdown, profiled.problem
    assert (profiled.breakdown.steps, len(profiled.breakdown.devices)) == (2, 8)
    assert {"input", "host"} <= {part.name for part in profiled.breakdown.parts if part.seconds}
    (measured,) = named(events, PartsMeasured)
    assert (measured.step, measured.parts) == (5, profiled.breakdown.parts)
    kept = set((tmp_path / "profile").rglob("*.xplane.pb"))
    (trace,) = kept - set(older)
    assert kept == {*older[1:], trace}
    lines = (line for plane in jax.profiler.ProfileData.from_file(str(trace)).planes for line in plane.lines)
    steps = [dict(event.stats)["step_num"] for line in lines for event in line.events if event.name == "train"]
    assert sorted(map(int, steps)) == [4, 5]


@pytest.mark.slow
def test_the_parts_of_the_step_are_measured(task: Task, programs: Programs, tmp_path: Path) -> None:
    """Due after every step, they are measured once: the second time would cost more than a hundredth of the time."""
    plain = losses(run(task, programs, tmp_path))
    events = run(task, programs, tmp_path, every=1e-9)
    assert losses(events) == plain
    assert not named(events, Profiling, Profiled, ProfileFailed), "no trace is announced"
    (measured,) = named(events, PartsMeasured)
    assert measured.step_seconds and measured.preset == "dp", measured.problem
    assert sum(part.seconds for part in measured.parts) == pytest.approx(measured.step_seconds, rel=1e-3)
    assert measured.pause_seconds > 0
    assert not list((tmp_path / "profile").rglob("*.pb")), "the trace is not kept"


def test_a_trace_that_a_viewer_requests_as_a_breakdown_is_due_is_made(tmp_path: Path) -> None:
    """Both are commands before the same step, in this order."""
    profiler = Profiler(tmp_path, lambda _: None, Cluster(), every=1.0)
    profiler.request(7, 10)
    profiler.request(7, 2, is_periodic=True)
    assert profiler._requested == Request(range(7, 17), is_periodic=False)


def test_training_continues_if_a_trace_cannot_be_written(tiny: Task, tiny_programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file where a directory has to be")
    events = run(tiny, tiny_programs, tmp_path, profile=2)
    (failed,) = named(events, ProfileFailed)
    assert "profile" in failed.problems[0]
    assert sorted(losses(events)) == [1, 2, 3, 4, 5, 6]


def resumed(event: Event) -> AnyCommand | None:
    return Resume() if isinstance(event, Paused) else None


def paused_while_traced(event: Event) -> AnyCommand | None:
    return Pause() if isinstance(event, Profiling) else resumed(event)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "answer", "kinds", "steps"),
    [
        ([ScheduledSwitch(4, "fsdp")], resumed, [Profiling, Profiled], 1),
        ([], resumed, [Profiling, Profiled], 3),
        ([], paused_while_traced, [Profiling, Paused, Profiled, Resumed], 1),
    ],
    ids=["switch", "end of the run", "pause"],
)
def test_a_switch_the_end_of_the_run_and_a_pause_end_a_trace(
    task: Task,
    programs: Programs,
    tmp_path: Path,
    switch: list[ScheduledSwitch],
    answer: Any,
    kinds: list[type[Event]],
    steps: int,
) -> None:
    events = run(task, programs, tmp_path, *switch, profile=100, answer=answer)
    assert [type(event) for event in named(events, Profiling, Profiled, Paused, Resumed)] == kinds
    (profiled,) = named(events, Profiled)
    assert (profiled.step, profiled.steps, profiled.preset) == (3 + steps, steps, "dp")
    assert profiled.breakdown, profiled.problem


@pytest.mark.core
@pytest.mark.parametrize("consumes", [False, True])
def test_a_switch_whose_first_step_fails_is_rolled_back(machine: type[LoopMachine], consumes: bool) -> None:
    state = machine()
    state.start(preset="dp", devices=8)
    state.train(2)
    state.save()
    state.switch_fails(name="fsdp", consumes=consumes)
    state.loop_and_model_agree()
    state.losses_are_those_without_commands()
    state.teardown()


def test_a_run_that_was_lost_after_its_last_step_ends_at_once(
    tiny: Task, tiny_programs: Programs, tmp_path: Path
) -> None:
    run(tiny, tiny_programs, tmp_path)
    again = LocalRun(tiny, tiny_programs, tmp_path)
    loop = again._loop
    assert loop.run(loop.tools.saver.newest()) == 6
    assert [event.step for event in again.named(Restored)] == [6]
    assert losses(again.events) == {}


def test_a_pause_drops_the_single_steps_that_were_requested_before() -> None:
    at: Any = SimpleNamespace(reports=StepReports(lambda _: None, lambda: None, Cluster()), done=0)
    pausing = Pausing(lambda _: None)
    for _ in range(3):
        pausing.step_once(at)
    pausing.begin_step(at)
    pausing.pause(at, "the loss is not finite")
    assert not pausing.runs_next_step


class Failing:
    def __init__(self, batches: Batches, errors: Mapping[int, BaseException]) -> None:
        self._batches, self._errors = batches, dict(errors)

    def __getitem__(self, n: int) -> Any:
        if error := self._errors.pop(n, None):
            raise error
        return self._batches[n]


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise GeneratorExit


def test_no_exception_of_a_batch_ends_the_run(tiny: Task, tiny_programs: Programs, tmp_path: Path) -> None:
    made = LocalRun(tiny, tiny_programs, tmp_path, answer=resumed)
    errors = [Unspeakable(), GeneratorExit(), asyncio.CancelledError(), KeyboardInterrupt(), ValueError("\ud800")]
    made.fail(dict(enumerate(errors, 1)))
    assert made.train() == 6
    assert sorted(losses(made.events)) == [1, 2, 3, 4, 5, 6]
    problems = [event.problem for event in made.named(Paused)]
    assert problems == [
        "Unspeakable: without a text, as its str() raises GeneratorExit",
        "GeneratorExit: ",
        "CancelledError: ",
        "KeyboardInterrupt: ",
        "ValueError: \\ud800",
    ]


@pytest.mark.parametrize(
    "error", [Unspeakable(), SystemExit(2), RuntimeError("\ud800")], ids=lambda each: type(each).__name__
)
def test_what_was_trained_before_an_error_is_saved(
    tiny: Task, tiny_programs: Programs, tmp_path: Path, error: BaseException
) -> None:
    """An error anywhere in the loop, of which the loop knows nothing: here where steps are reported, before a save."""
    errors = [error]

    def answer(event: Event) -> None:
        if isinstance(event, StepsDone) and event.step == 4 and errors:
            raise errors.pop()

    made = LocalRun(tiny, tiny_programs, tmp_path, answer=answer)
    with pytest.raises(type(error)):
        made.train()
    assert [saved.step for saved in made.named(CheckpointSaved)] == [2, 4]
    assert max(losses(made.events)) == 4


@pytest.fixture
def machine() -> Iterator[type[LoopMachine]]:
    LoopMachine.shared = Shared()
    yield LoopMachine
    shutil.rmtree(LoopMachine.shared.folder)


@pytest.mark.core
def test_the_loop_agrees_with_the_model_under_random_commands_and_failures(machine: type[LoopMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))


@pytest.mark.slow
def test_a_restored_state_is_saved_again_if_its_checkpoint_was_damaged(machine: type[LoopMachine]) -> None:
    state = machine()
    state.start(preset="dp", devices=8)
    state.train(2)
    state.stop_and_resume(devices=8, preset=None, after=4, to="fsdp")
    state.pause()
    state.restore_a_damaged_checkpoint(which=0, where=0)
    state.teardown()
