"""The real loop under random commands and failures, against a model of where it should be.

The model is a step, a preset and whether it is paused; the losses are those of the same run without any command.
"""

import errno
import itertools
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import msgspec
from etils import epath
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.checkpoint import saver as saver_module
from shardtui.engine.checkpoint.directory import DAMAGED, Place, load_arrays, save_arrays
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task
from shardtui.engine.program.compile_queue import Urgency
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.program import Program, compile_initial_state, place
from shardtui.engine.program.reshard import Movers
from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.training.data import Batches, read_corpus
from shardtui.engine.training.loop import Loop
from shardtui.engine.training.profiler import Profiler
from shardtui.engine.wire.commands import (
    AddPreset,
    Pause,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from shardtui.engine.wire.events import (
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointsKept,
    EngineStarted,
    Event,
    Paused,
    Restored,
    RestoreFailed,
    Switched,
    SwitchFailed,
)
from shardtui.engine.wire.inbox import Inbox
from shardtui.tui.state.run_state import Phase, RunState

from .conftest import READY, tiny_config, tiny_model

NAMES = ("dp", "fsdp", "tp")
DEVICES = (8, 4, 1)
MADE = 'summary = "made in the run"\n[mesh]\ndata = -1\n[rules]\nbatch = "data"\nmlp = "data"\n'
TOLERANCE = 1e-5
COUNTED = (
    Switched,
    SwitchFailed,
    Paused,
    CheckpointSaved,
    CheckpointFailed,
    CheckpointDamaged,
    Restored,
    RestoreFailed,
)


class Step:
    """Of a program, which fails when it is told to, as XLA does where there is no memory."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self.fails: Callable[[Any], None] | None = None

    def __call__(self, state: Any, batch: Any) -> Any:
        if self.fails is None:
            return self._step(state, batch)
        fails, self.fails = self.fails, None
        fails(state)
        return jax.block_until_ready(jax.jit(lambda: jnp.ones(2**46, jnp.float32))())


def leaves_the_state(_: Any) -> None:
    """The program could not be run."""


def takes_the_state(state: Any) -> None:
    """It was donated already."""
    for leaf in jax.tree.leaves(state):
        leaf.delete()


class Failing:
    """A function that raises once, when it is told to."""

    def __init__(self, function: Callable[..., Any], error: Callable[[], Exception]) -> None:
        self._function = function
        self._error = error
        self.is_next = False

    def __call__(self, *arguments: Any) -> Any:
        if self.is_next:
            self.is_next = False
            raise self._error()
        return self._function(*arguments)


class FailingBatches:
    """Those of the text, as a user's function would make them."""

    def __init__(self, batches: Batches) -> None:
        self.get = Failing(batches.__getitem__, lambda: Invalid("batch: ValueError: none today (lm.py:7)"))

    def __getitem__(self, number: int) -> Any:
        return self.get(number)


class Workshop:
    """What all sequences share, as it takes long to make: programs, movers, and the losses to be compared with."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shardtui-loop-"))
        text = self.folder / "text"
        text.write_text("What is split comes together. " * 200)
        model = tiny_model(layers=1, context=8)
        config = tiny_config(model=model, data=str(text), checkpoints=CheckpointConfig(every_minutes=None))
        training = msgspec.structs.replace(config.training, seq_len=8)
        self.config = msgspec.structs.replace(config, training=training)
        self.task = Task(self.config, "cpu")
        self.corpus = read_corpus(self.config.data)
        self.presets = {name: read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in NAMES}
        self.programs: dict[Any, Program] = {}
        self.movers: dict[int, Movers] = {count: Movers() for count in DEVICES}
        self.losses: list[float] = []
        self.compared = 0
        self._initial: dict[Any, Callable[[], Any]] = {}
        self._undisturbed = self._losses()
        saver_module.load_arrays = self.load = Failing(load_arrays, MemoryError)
        saver_module.save_arrays = self.save = Failing(
            save_arrays, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        )

    @property
    def batches(self) -> Batches:
        training = self.config.training
        return Batches(self.corpus, training.batch_size, training.seq_len, self.config.seed)

    def compiler(self, devices: int, made: Path) -> "KeptCompiler":
        return KeptCompiler(self, devices, made)

    def initial(self, preset: Preset, devices: int) -> Callable[[], Any]:
        if (preset.name, devices) not in self._initial:
            placement = place(self.task, preset, jax.devices()[:devices])
            self._initial[preset.name, devices] = compile_initial_state(self.task, placement)
        return self._initial[preset.name, devices]

    def loss(self, step: int) -> float:
        """Of step 1, 2, …, of a run that nothing happens to."""
        while len(self.losses) < step:
            self.losses.append(next(self._undisturbed))
        return self.losses[step - 1]

    def _losses(self) -> Iterator[float]:
        compiler = self.compiler(8, self.folder)
        program, state = compiler.compiled("dp"), self.initial(self.presets["dp"], 8)()
        compiler.close()
        for number in itertools.count():
            batch = map(jax.device_put, self.batches[number], program.placement.batch_shardings)
            state, loss = program.step(state, type(self.task.batch_arrays)(*batch))
            yield float(loss)


class KeptCompiler(Compiler):
    """Compiles each program once for all sequences."""

    def __init__(self, shop: Workshop, devices: int, made: Path) -> None:
        super().__init__(shop.task, dict(shop.presets), jax.devices()[:devices], made)
        self._shop = shop
        self.movers = shop.movers[devices]

    def compiled(self, name: str, begins: Any = lambda _: None) -> Program:
        key = name, len(self.devices)
        if key not in self._shop.programs:
            program = super().compiled(name, begins)
            self._shop.programs[key] = replace(program, step=Step(program.step))
        self.kept.add(self._shop.programs[key])
        return self._shop.programs[key]

    def initial_state(self, name: str) -> Any:
        return self._queue.submit(Urgency.ASKED, lambda: self._shop.initial(self._preset(name), len(self.devices)))

    def wait(self) -> None:
        """Until all that waits is compiled, by either thread."""
        self._queue.submit(Urgency.LIKELY, lambda: None).result()
        both = threading.Barrier(2)
        for job in [self._queue.submit(Urgency.ASKED, both.wait) for _ in range(both.parties)]:
            job.result()


class LoopMachine(RuleBasedStateMachine):
    shop: Workshop
    """Set by whoever runs it."""
    done: ClassVar[list[str]] = []
    """Commands and failures of all sequences, by what the events say."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=self.shop.folder))
        self.events: list[Event] = []
        self.seen = RunState()
        self.step, self.preset, self.paused = 0, "dp", False
        self.schedule: list[ScheduledSwitch] = []
        self.damaged = 0
        """Checkpoints that this machine damaged."""
        self.is_running = False

    @initialize(preset=st.sampled_from(NAMES), devices=st.sampled_from(DEVICES))
    def start(self, preset: str, devices: int) -> None:
        self._begin(preset, devices)

    @rule(steps=st.integers(1, 3))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._turn(*([StepOnce()] if self.paused else []), single_step=self.paused)

    @rule(name=st.sampled_from(NAMES))
    def switch(self, name: str) -> None:
        self._turn_to(name, SwitchPreset(name))

    @rule()
    def add_a_preset(self) -> None:
        """One that the run has is refused, and the switch to it with it."""
        if "made" in self.loop._compiler._presets:
            self._turn(AddPreset("made", MADE))
            assert isinstance(self._last(SwitchFailed), SwitchFailed)
        else:
            self._turn_to("made", AddPreset("made", MADE))

    @rule(name=st.sampled_from(NAMES), fails=st.sampled_from([leaves_the_state, takes_the_state]))
    def switch_to_what_fails(self, name: str, fails: Callable[[Any], None]) -> None:
        """Its first step does. Where that took the state, the newest checkpoint is there."""
        if self.schedule or name == self.preset or (fails is takes_the_state and not self.loop._saver.kept()):
            return
        if self.paused:
            self.go_on()
        before = self.preset
        self._put(SwitchPreset(name))
        self._turn()
        self.loop._compiler.wait()
        step = self.shop.programs[name, self.devices].step
        assert isinstance(step, Step)
        step.fails = fails
        self.loop.turn()
        assert step.fails is None
        failed = self._last(SwitchFailed)
        assert (failed.to_preset, failed.preset) == (name, before)
        if fails is takes_the_state:
            self.loop._saver.finish()
            self.step = self.loop._saver.kept()[-1].step

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self._put(Pause())
        self.paused = True
        self._turn()

    @precondition(lambda self: self.paused)
    @rule()
    def go_on(self) -> None:
        self.paused = False
        self._turn(Resume())

    @rule()
    def save(self) -> None:
        at = self.step
        self._turn(SaveCheckpoint())
        self.loop._saver.finish()
        assert at in [kept.step for kept in self.loop._saver.kept()]

    @rule()
    def save_to_a_full_disk(self) -> None:
        if self.step in [kept.step for kept in self.loop._saver.kept()]:
            return
        self.shop.save.is_next = True
        self._turn(SaveCheckpoint())
        assert not self.shop.save.is_next
        assert "the disk is full" in self._last(CheckpointFailed).problems[0]

    @precondition(lambda self: self.seen.checkpoints)
    @rule(which=st.integers(0, 3))
    def go_back(self, which: int) -> None:
        step = self._kept(which)
        self.step = step
        self._turn(RestoreCheckpoint(step))
        assert not [kept for kept in self.loop._saver.kept() if kept.step > step]

    @precondition(lambda self: self.seen.checkpoints)
    @rule()
    def go_back_without_memory(self) -> None:
        """The state is the one from before, and no checkpoint is set aside."""
        kept = [info.step for info in self.loop._saver.kept()]
        self.shop.load.is_next = True
        self._turn(RestoreCheckpoint(kept[0]))
        assert "out of memory" in self._last(RestoreFailed).problems[0]
        assert [info.step for info in self.loop._saver.kept()] == kept

    @precondition(lambda self: self.seen.checkpoints)
    @rule(which=st.integers(0, 3), where=st.integers(0, 1 << 20))
    def go_back_to_what_is_damaged(self, which: int, where: int) -> None:
        step = self._kept(which)
        if not step:  # with nothing trained there may be nothing else to begin from
            return
        file = max((path for path in (self.home / "checkpoints" / str(step)).rglob("*") if path.is_file()), key=size)
        content = bytearray(file.read_bytes())
        content[where % len(content)] ^= 1
        file.write_bytes(content)
        self.damaged += 1
        self._turn(RestoreCheckpoint(step))
        assert self._last(RestoreFailed).step == step

    @precondition(lambda self: not self.paused)
    @rule()
    def a_batch_fails(self) -> None:
        self.batches.get.is_next = True
        self.paused = True
        self._turn()
        assert self.seen.paused_by == "batch: ValueError: none today (lm.py:7)"

    @rule(
        devices=st.sampled_from(DEVICES),
        preset=st.sampled_from([None, *NAMES]),
        after=st.integers(0, 4),
        to=st.sampled_from(NAMES),
    )
    def stop_and_resume(self, devices: int, preset: str | None, after: int, to: str) -> None:
        """With a switch that is scheduled."""
        self._stop()
        if kept := self.loop._saver.kept():
            self.step = kept[-1].step
            self.preset = name_in(self.home, kept[-1].preset)
        else:
            self.step = 0
        self.paused = False
        self._begin(preset or self.preset, devices, ScheduledSwitch(self.step + after, to))

    @invariant()
    def it_is_where_it_should_be(self) -> None:
        if not self.events:
            return
        at = self.loop.at
        assert (at.begun, at.program.name) == (self.step, self.preset)
        assert self.seen.preset == self.preset
        assert self.seen.phase == (Phase.PAUSED if self.paused else Phase.TRAINING)
        aside = [path.name for path in (self.home / "checkpoints").iterdir() if f".{DAMAGED}" in path.name]
        assert len(aside) == self.damaged

    @invariant()
    def its_losses_are_those_of_the_run_without_commands(self) -> None:
        """Once settled, which reports every step that was made."""
        if self.events:
            self.loop.at.reports.settle()
            assert self.loop.at.done == self.seen.step == len(self.seen.losses) == self.step
        self.shop.compared += len(self.seen.losses)
        for step, loss in enumerate(self.seen.losses, 1):
            assert math.isclose(loss, self.shop.loss(step), rel_tol=TOLERANCE), f"step {step}"

    def teardown(self) -> None:
        if self.is_running:
            self._stop()
        shutil.rmtree(self.home)

    def _begin(self, preset: str, devices: int, *schedule: ScheduledSwitch) -> None:
        shop, self.devices = self.shop, devices
        self.preset, self.schedule = preset, list(schedule)
        self.inbox, cluster = Inbox(), Cluster()
        config = msgspec.structs.replace(shop.config, preset=preset, switches=tuple(schedule))
        compiler = shop.compiler(devices, self.home / "presets")
        if (self.home / "presets/made.toml").exists():
            compiler._presets["made"] = read_preset(self.home / "presets/made.toml")
        place = Place(epath.Path(self.home / "checkpoints"))
        self._hear(EngineStarted(protocol=0, pid=os.getpid(), config=config))
        self._hear(READY)
        saver = Saver(
            place,
            config,
            shop.task,
            shop.corpus.describe(),
            compiler.devices,
            cluster,
            self._hear,
            self.inbox.wake,
        )
        self.batches = FailingBatches(shop.batches)
        profiler = Profiler(self.home / "profile", self._hear)
        self.loop = Loop(config, self.batches, compiler, saver, profiler, self._hear, self.inbox, cluster)
        assert self.loop.begin(saver.newest())
        self.is_running = True
        compiler.wait()

    def _stop(self) -> None:
        """All that was trained is saved."""
        self.is_running = False
        self.inbox.put(Stop())
        self.loop.turn()
        assert self.loop.is_over
        assert self.loop.end() == self.step
        kept = [info.step for info in self.loop._saver.kept()]
        assert not self.step or kept[-1] == self.step
        self.loop._compiler.close()

    def _turn_to(self, name: str, command: Any) -> None:
        """A switch that was asked for happens before the next step after its program is there, unless one that is
        scheduled takes its place."""
        is_replaced = self.schedule and self.schedule[0].step == self.step
        self._turn(command)
        self.loop._compiler.wait()
        if not is_replaced:
            self.preset = name
        if self.paused:
            self.inbox.wake()
        self._turn()

    def _turn(self, *commands: Any, single_step: bool = False) -> None:
        """One turn of the loop, and of the model. Where it is paused it waits for a command."""
        self._put(*commands)
        if self.paused and not commands:
            self.inbox.wake()
        if self.schedule and self.schedule[0].step == self.step:
            self.preset = self.schedule.pop(0).preset
        self.step += not self.paused or single_step
        self.loop.turn()

    def _put(self, *commands: Any) -> None:
        for command in commands:
            assert self.inbox.put(command) is None

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, COUNTED):
            self.done.append(type(event).__name__)
        self.seen.apply(event)
        if isinstance(event, CheckpointsKept):
            assert [info.step for info in event.checkpoints] == sorted(info.step for info in event.checkpoints)

    def _kept(self, which: int) -> int:
        """The step of one of the checkpoints that a viewer is offered."""
        assert [info.step for info in self.seen.checkpoints] == [info.step for info in self.loop._saver.kept()]
        return self.seen.checkpoints[which % len(self.seen.checkpoints)].step

    def _last(self, kind: type[Any]) -> Any:
        """The last event of that kind."""
        return next(event for event in reversed(self.events) if isinstance(event, kind))


def name_in(home: Path, preset: str) -> str:
    """Of a preset as a checkpoint has it: a name, or a file."""
    return Path(preset).stem if "/" in preset else preset


def size(path: Path) -> int:
    return path.stat().st_size
