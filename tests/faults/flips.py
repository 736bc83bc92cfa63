"""Random bit flips in the living state of a run that compares the replicas of its arrays: each must be found."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.program.replicas import first_holders
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.commands import AnyCommand, RestoreCheckpoint, Resume, Stop
from shardtui.engine.wire.events import CheckpointsKept, DevicesDiffer, Event, Paused

from ..conftest import tiny_config
from ..flipping_run import FlippingRun
from ..flips import Flip, random_flip, unequal_replicas
from .row import Row

PRESETS = ("dp", "hsdp", "dp-tp2", "dp-tp2-pp2")
FLIPS = 5
"""Under each preset, in the short form."""
EVERY = 5
"""Steps between comparisons."""
LATEST = 10
"""Most steps between two flips."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each preset: `times` as many flips as in the short form."""
    config = tiny_config(check_devices=EVERY, checkpoints=CheckpointConfig(every_steps=2 * EVERY, every_minutes=None))
    task = Task(config, "cpu")
    for name in PRESETS:
        program = compile_program(task, place(task, load_preset(name), jax.devices()))
        yield Flipping(task, program, FLIPS * times).row()


class Flipping:
    """One run, in which a bit flips, the run goes back, and the next one flips."""

    def __init__(self, task: Task, program: Program, count: int) -> None:
        self._count, self._chance, self._name = count, random.Random(0), program.name
        self._first = first_holders(jax.tree.leaves(program.placement.state_shardings))
        self._saved, self._wait = 0, 1
        self._flip: Flip | None = None
        self._check_at, self._is_there = 0, False
        """The step after which the replicas are compared next, and whether any differ then."""
        self._wrong: list[str] = []
        self._named = self._listed = self._gone = self._by_loss = 0
        folder = Path(os.environ["XDG_STATE_HOME"]) / f"flips-{program.name}"
        self._run = FlippingRun(task, {program.name: program}, folder, self._next, self._seen, preset=program.name)

    def row(self) -> Row:
        """Trains until all bits have flipped."""
        self._run.train()
        others = [
            f"{self._gone} rounded away before, all replicas equal again" * bool(self._gone),
            f"{self._by_loss} by a loss that is not finite" * bool(self._by_loss),
        ]
        note = f"{self._named} found and the device named, {self._listed} found in one of several named"
        text = "; ".join(self._wrong[:3]) or ", ".join([note, *filter(None, others)])
        return Row(f"bit flips under {self._name}", self._count, self._count - len(self._wrong), text)

    @property
    def _ended(self) -> int:
        return self._named + self._listed + self._gone + self._by_loss + len(self._wrong)

    def _next(self, step: int, state: TrainState) -> Flip | None:
        """Returns the flip that is due after this step; looks at the replicas themselves when they are compared."""
        if self._flip is not None:
            if step == self._check_at:
                self._is_there = bool(unequal_replicas(state))
            if step < self._check_at + 2:
                return None
            self._flip = None
            if self._is_there:
                self._wrong.append(f"not found at step {self._check_at}")
            self._gone += not self._is_there
        if self._ended >= self._count:
            self._run.send(Stop())
            return None
        self._wait -= 1
        if not self._saved or self._wait > 0:
            return None
        self._wait = self._chance.randint(1, LATEST)
        self._flip = self._chosen(state)
        self._check_at, self._is_there = -(-step // EVERY) * EVERY, True
        return self._flip

    def _chosen(self, state: TrainState) -> Flip:
        """Returns a flip in an array that several devices hold."""
        while len(self._replicas(flip := random_flip(state, self._chance))) == 1:
            pass
        return flip

    def _replicas(self, flip: Flip) -> list[int]:
        of_leaf = self._first[:, flip.leaf]
        return np.flatnonzero(of_leaf == of_leaf[flip.device]).tolist()

    def _seen(self, event: Event) -> list[AnyCommand]:
        match event:
            case CheckpointsKept(checkpoints=kept):
                self._saved = kept[-1].step if kept else 0
            case DevicesDiffer():
                self._judge(event)
            case Paused(problem=str(problem)) if "not finite" in problem:
                self._by_loss += self._flip is not None
                self._flip = None
                return [RestoreCheckpoint(self._saved), Resume()]
            case Paused():
                return [Resume()]
            case _:
                pass
        return []

    def _judge(self, found: DevicesDiffer) -> None:
        """Counts a flip that was found, if it was found in time and the right device is named."""
        flip, self._flip = self._flip, None
        named = [device.id for device in found.devices]
        if flip is None or found.step != self._check_at:
            self._wrong.append(f"devices {named} named after step {found.step}, not {self._check_at}")
        elif found.is_certain and named == [flip.device]:
            self._named += 1
        elif not found.is_certain and flip.device in named:
            self._listed += 1
        else:
            self._wrong.append(f"devices {named} named for {flip}")
