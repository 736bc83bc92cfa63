"""Runs the real training loop under random commands and failures, and compares it with a simple model.

The model is a step, a preset and whether the loop is paused; losses must be those of the same run without commands.
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
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint import loader as loader_module
from shardtui.engine.checkpoint import saver as saver_module
from shardtui.engine.checkpoint.arrays import load_arrays, save_arrays
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.owned_directory import DAMAGED
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import read_corpus
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task
from shardtui.engine.program.compile_queue import Urgency
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state
from shardtui.engine.program.reshard import Transfers
from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.training.loop import Loop
from shardtui.engine.training.profiler import Profiler
from shardtui.engine.training.tools import Tools
from shardtui.engine.wire import commands
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.inbox import Inbox
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import Phase, RunState

from .conftest import READY, tiny_config, tiny_model

NAMES = ("dp", "fsdp", "tp")
DEVICES = (8, 4, 1)
MADE = 'summary = "made in the run"\n[mesh]\ndata = -1\n[rules]\nbatch = "data"\nmlp = "data"\n'
TOLERANCE = 1e-5
COUNTED = (
    *("Switched", "SwitchFailed", "Paused", "CheckpointSaved", "CheckpointFailed", "CheckpointDamaged"),
    *("Restored", "RestoreFailed"),
)


class Step:
    """A program's step that can be made to fail once, out of memory as XLA fails."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self.fails = False
        self.consumes = False
        """Whether it then fails after it has taken the donated state, which is gone; else before it runs."""

    def __call__(self, state: Any, batch: Any) -> Any:
        if not self.fails:
            return self._step(state, batch)
        self.fails = False
        for leaf in jax.tree.leaves(state) if self.consumes else ():
            leaf.delete()
        return jax.block_until_ready(jax.jit(lambda: jnp.ones(2**46, jnp.float32))())


class Failing:
    """A function, or batches by number, that raises once when `is_next` is set."""

    def __init__(self, function: Callable[..., Any], error: Callable[[], Exception]) -> None:
        self._function, self._error = function, error
        self.is_next = False

    def __call__(self, *arguments: Any) -> Any:
        if self.is_next:
            self.is_next = False
            raise self._error()
        return self._function(*arguments)

    __getitem__ = __call__


class Shared:
    """What all sequences share because it is slow to make: programs, transfers, and the expected losses."""

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
        self.batches = Batches(self.corpus, training.batch_size, training.seq_len, self.config.seed)
        self.presets = {name: read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in NAMES}
        self.programs: dict[Any, Program] = {}
        self.transfers: dict[int, Transfers] = {count: Transfers() for count in DEVICES}
        self.losses: list[float] = []
        self.compared = 0
        self._initial: dict[Any, Callable[[], Any]] = {}
        self._undisturbed = self._losses()
        loader_module.load_arrays = self.load = Failing(load_arrays, MemoryError)
        saver_module.save_arrays = self.save = Failing(
            save_arrays, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        )

    def initial(self, preset: Preset, devices: int) -> Callable[[], Any]:
        if (preset.name, devices) not in self._initial:
            placement = place(self.task, preset, jax.devices()[:devices])
            self._initial[preset.name, devices] = compile_initial_state(placement)
        return self._initial[preset.name, devices]

    def loss(self, step: int) -> float:
        while len(self.losses) < step:
            self.losses.append(next(self._undisturbed))
        return self.losses[step - 1]

    def _losses(self) -> Iterator[float]:
        compiler = SharedCompiler(self, 8, self.folder)
        program, state = compiler.compiled("dp"), self.initial(self.presets["dp"], 8)()
        compiler.close()
        for number in itertools.count():
            batch = map(jax.device_put, self.batches[number], program.placement.batch_shardings)
            state, scalars = program.step(state, type(self.task.batch_arrays)(*batch))
            yield float(scalars["loss"])


class SharedCompiler(Compiler):
    def __init__(self, shared: Shared, devices: int, made: Path, wake: Callable[[], None] = lambda: None) -> None:
        super().__init__(shared.task, dict(shared.presets), jax.devices()[:devices], made, wake=wake)
        self._shared = shared
        self.transfers = shared.transfers[devices]

    def compiled(self, name: str, on_phase: Any = lambda _: None) -> Program:
        key = name, len(self.devices)
        if key not in self._shared.programs:
            program = super().compiled(name, on_phase)
            self._shared.programs[key] = replace(program, step=Step(program.step))
        self.kept.add(self._shared.programs[key])
        return self._shared.programs[key]

    def initial_state(self, name: str) -> Any:
        return self._queue.submit(
            Urgency.REQUESTED, lambda: self._shared.initial(self._preset(name), len(self.devices))
        )

    def wait(self) -> None:
        self._queue.submit(Urgency.LIKELY, lambda: None).result()
        both = threading.Barrier(2)
        for job in [self._queue.submit(Urgency.REQUESTED, both.wait) for _ in range(both.parties)]:
            job.result()


class LoopMachine(RuleBasedStateMachine):
    shared: Shared
    done: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=self.shared.folder))
        self.events: list[wire.Event] = []
        self.seen = RunState()
        self.step, self.preset, self.paused, self.damaged = 0, "dp", False, 0
        self.schedule: list[ScheduledSwitch] = []
        self.is_running = False

    @initialize(preset=st.sampled_from(NAMES), devices=st.sampled_from(DEVICES))
    def start(self, preset: str, devices: int) -> None:
        self._begin(preset, devices)

    @rule(steps=st.integers(1, 3))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._advance(*([commands.StepOnce()] if self.paused else []), single_step=self.paused)

    @rule(name=st.sampled_from(NAMES))
    def switch(self, name: str) -> None:
        self._switch_to(name, commands.SwitchPreset(name))

    @rule()
    def add_a_preset(self) -> None:
        """Adds a preset and switches to it; if the run has it already, both are refused."""
        if "made" in self.loop.tools.compiler._presets:
            self._advance(commands.AddPreset("made", MADE))
            assert isinstance(self._last(wire.SwitchFailed), wire.SwitchFailed)
        else:
            self._switch_to("made", commands.AddPreset("made", MADE))

    @rule(name=st.sampled_from(NAMES), consumes=st.booleans())
    def switch_fails(self, name: str, consumes: bool) -> None:
        """Fails the first step after a switch; if that consumed the state, the newest checkpoint is restored."""
        if self.schedule or name == self.preset or (consumes and not self.kept):
            return
        if self.paused:
            self.resume()
        before = self.preset
        self._put(commands.SwitchPreset(name))
        self._advance()
        self.loop.tools.compiler.wait()
        step = self.shared.programs[name, self.devices].step
        step.fails, step.consumes = True, consumes
        self.loop.advance()
        assert not step.fails
        failed = self._last(wire.SwitchFailed)
        assert (failed.to_preset, failed.preset) == (name, before)
        if consumes:
            self.loop.tools.saver.finish()
            self.step = self.kept[-1]

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self._put(commands.Pause())
        self.paused = True
        self._advance()

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.paused = False
        self._advance(commands.Resume())

    @rule()
    def save(self) -> None:
        at = self.step
        self._advance(commands.SaveCheckpoint())
        self.loop.tools.saver.finish()
        assert at in self.kept

    @rule()
    def save_to_a_full_disk(self) -> None:
        if self.step in self.kept:
            return
        self.shared.save.is_next = True
        self._advance(commands.SaveCheckpoint())
        assert not self.shared.save.is_next
        assert "the disk is full" in self._last(wire.CheckpointFailed).problems[0]

    @precondition(lambda self: self.seen.checkpoints)
    @rule(which=st.integers(0, 3))
    def restore(self, which: int) -> None:
        step = self._chosen(which)
        self.step = step
        self._advance(commands.RestoreCheckpoint(step))
        assert not [kept for kept in self.kept if kept > step]

    @precondition(lambda self: self.seen.checkpoints)
    @rule()
    def restore_without_memory(self) -> None:
        """Fails a restore, out of memory: the state is unchanged, and no checkpoint counts as damaged."""
        kept = self.kept
        self.shared.load.is_next = True
        self._advance(commands.RestoreCheckpoint(kept[0]))
        assert "out of memory" in self._last(wire.RestoreFailed).problems[0]
        assert self.kept == kept

    @precondition(lambda self: self.seen.checkpoints)
    @rule(which=st.integers(0, 3), where=st.integers(0, 1 << 20))
    def restore_a_damaged_checkpoint(self, which: int, where: int) -> None:
        step = self._chosen(which)
        if not step:  # the initial checkpoint may be the only one to begin from
            return
        files = (path for path in (self.home / "checkpoints" / str(step)).rglob("*") if path.is_file())
        file = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        content[where % len(content)] ^= 1
        file.write_bytes(content)
        self.damaged += 1
        self._advance(commands.RestoreCheckpoint(step))
        assert self._last(wire.RestoreFailed).step == step

    @precondition(lambda self: not self.paused)
    @rule()
    def a_batch_fails(self) -> None:
        self.batches.is_next = True
        self.paused = True
        self._advance()
        assert self.seen.paused_by == "batch: ValueError: none today (lm.py:7)"

    @rule(
        devices=st.sampled_from(DEVICES),
        preset=st.sampled_from([None, *NAMES]),
        after=st.integers(0, 4),
        to=st.sampled_from(NAMES),
    )
    def stop_and_resume(self, devices: int, preset: str | None, after: int, to: str) -> None:
        self._stop()
        if kept := self.loop.tools.saver.kept():
            self.step = kept[-1].step
            self.preset = Path(kept[-1].preset).stem
        else:
            self.step = 0
        self.paused = False
        self._begin(preset or self.preset, devices, ScheduledSwitch(self.step + after, to))

    @invariant()
    def loop_and_model_agree(self) -> None:
        if not self.events:
            return
        at = self.loop.at
        assert (at.begun, at.program.name) == (self.step, self.preset)
        assert self.seen.preset == self.preset
        assert self.seen.phase == (Phase.PAUSED if self.paused else Phase.TRAINING)
        aside = [path.name for path in (self.home / "checkpoints").iterdir() if f".{DAMAGED}" in path.name]
        assert len(aside) == self.damaged

    @invariant()
    def losses_are_those_without_commands(self) -> None:
        if self.events:
            self.loop.at.reports.flush()
            assert self.loop.at.done == self.seen.step == len(self.seen.losses) == self.step
        self.shared.compared += len(self.seen.losses)
        for step, loss in enumerate(self.seen.losses, 1):
            assert math.isclose(loss, self.shared.loss(step), rel_tol=TOLERANCE), f"step {step}"

    def teardown(self) -> None:
        if self.is_running:
            self._stop()
        shutil.rmtree(self.home)

    def _begin(self, preset: str, devices: int, *schedule: ScheduledSwitch) -> None:
        shared, self.devices = self.shared, devices
        self.preset, self.schedule = preset, list(schedule)
        self.inbox, cluster = Inbox(), Cluster()
        config = msgspec.structs.replace(shared.config, preset=preset, switches=tuple(schedule))
        compiler = SharedCompiler(shared, devices, self.home / "presets", self.inbox.wake)
        if (self.home / "presets/made.toml").exists():
            compiler._presets["made"] = read_preset(self.home / "presets/made.toml")
        place = CheckpointDirectory(epath.Path(self.home / "checkpoints"))
        self._record(wire.EngineStarted(protocol=0, pid=os.getpid(), config=config))
        self._record(READY)
        about = config, shared.task, shared.corpus.describe()
        saver = Saver(place, *about, cluster, self._record, self.inbox.wake)
        self.batches = Failing(shared.batches.__getitem__, lambda: UserError("batch: ValueError: none today (lm.py:7)"))
        profiler = Profiler(self.home / "profile", self._record, cluster)
        self.loop = Loop(Tools(config, compiler, saver, profiler, cluster, self.inbox, self._record), self.batches)
        assert self.loop.begin(saver.newest())
        self.is_running = True
        compiler.wait()

    def _stop(self) -> None:
        self.is_running = False
        self.inbox.put(commands.Stop())
        self.loop.advance()
        assert self.loop.is_over
        assert self.loop.end() == self.step
        assert not self.step or self.kept[-1] == self.step
        self.loop.tools.compiler.close()

    def _switch_to(self, name: str, command: Any) -> None:
        """Switches by a command, once the program is compiled, unless a scheduled switch overrides it."""
        is_replaced = self.schedule and self.schedule[0].step == self.step
        self._advance(command)
        self.loop.tools.compiler.wait()
        if not is_replaced:
            self.preset = name
        if self.paused:
            self.inbox.wake()
        self._advance()

    def _advance(self, *commands: Any, single_step: bool = False) -> None:
        """Advances the loop and the model once; a paused loop is woken first."""
        self._put(*commands)
        if self.paused and not commands:
            self.inbox.wake()
        if self.schedule and self.schedule[0].step == self.step:
            self.preset = self.schedule.pop(0).preset
        self.step += not self.paused or single_step
        self.loop.advance()

    def _put(self, *commands: Any) -> None:
        for command in commands:
            assert self.inbox.put(command) is None

    def _record(self, event: wire.Event) -> None:
        self.events.append(event)
        if (name := type(event).__name__) in COUNTED:
            self.done.append(name)
        apply(self.seen, event)
        if isinstance(event, wire.CheckpointsKept):
            assert [info.step for info in event.checkpoints] == sorted(info.step for info in event.checkpoints)

    @property
    def kept(self) -> list[int]:
        """The steps of the checkpoints."""
        return [info.step for info in self.loop.tools.saver.kept()]

    def _chosen(self, which: int) -> int:
        assert [info.step for info in self.seen.checkpoints] == self.kept
        return self.kept[which % len(self.kept)]

    def _last(self, kind: type[Any]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, kind))
