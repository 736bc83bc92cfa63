"""Flips bits in the living state of a run: in what one device holds of one array."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import read_corpus
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.program import Program
from shardtui.engine.program.state_function import shard_digest_function
from shardtui.engine.training.loop import Loop
from shardtui.engine.training.profiler import Profiler
from shardtui.engine.wire.commands import AnyCommand
from shardtui.engine.wire.events import Event
from shardtui.engine.wire.inbox import Inbox

from .conftest import Known


@dataclass(frozen=True)
class Flip:
    """One bit of one element on one device."""

    leaf: int
    """The array, as a place among the leaves."""
    device: int
    """The device, as a place in the mesh."""
    element: int
    """The element of the shard, in row-major order."""
    bit: int
    """The bit of the element."""


def random_flip(state: TrainState, chance: random.Random) -> Flip:
    """Returns a flip of a bit that is drawn from all bits of a random array, on a random device."""
    leaves = jax.tree.leaves(state)
    leaf = chance.randrange(len(leaves))
    shard = leaves[leaf].addressable_shards[0].data
    device = chance.randrange(len(leaves[leaf].sharding.mesh.devices.flat))
    return Flip(leaf, device, chance.randrange(shard.size), chance.randrange(8 * shard.dtype.itemsize))


def flipped(state: TrainState, flip: Flip) -> TrainState:
    """Returns the state with one bit flipped; all other shards are the same buffers."""
    leaves, treedef = jax.tree.flatten(state)
    array = leaves[flip.leaf]
    device = array.sharding.mesh.devices.flat[flip.device]
    shards = [_flipped(shard, flip) if shard.device == device else shard.data for shard in array.addressable_shards]
    leaves[flip.leaf] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
    return treedef.unflatten(leaves)


def _flipped(shard: jax.Shard, flip: Flip) -> jax.Array:
    held = np.array(shard.data)
    bits = held.reshape(-1).view(np.uint8)
    bits[flip.element * held.dtype.itemsize + flip.bit // 8] ^= 1 << flip.bit % 8
    return jax.device_put(held, shard.device)


def unequal_replicas(state: TrainState) -> set[int]:
    """Returns the places of arrays whose replicas differ, by comparing the bytes themselves."""
    found: set[int] = set()
    for place, leaf in enumerate(jax.tree.leaves(state)):
        held: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            own = np.asarray(shard.data).tobytes()
            if held.setdefault(str(shard.index), own) != own:
                found.add(place)
    return found


class FlippingRun:
    """A loop in this process, in whose state bits flip right after a step."""

    def __init__(
        self,
        task: Task,
        programs: dict[str, Program],
        folder: Path,
        flip: Callable[[int, TrainState], Flip | None],
        answer: Callable[[Event], list[AnyCommand]],
        is_supervised: bool = False,
        **changes: Any,
    ) -> None:
        """`flip` returns what flips after a step, if anything, from its number and the state; `answer` the commands
        that are sent when an event is published. `changes`: of the task's config."""
        self.events: list[Event] = []
        self._flip, self._answer, self._inbox = flip, answer, Inbox()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text").write_text("What is split comes together. " * 100)
        config = msgspec.structs.replace(task.config, data=str(folder / "text"), **changes)
        corpus = read_corpus(config.data)
        place = CheckpointDirectory(epath.Path(folder / "checkpoints"))
        cluster, wake = Cluster(), self._inbox.wake
        self.saver = Saver(place, config, task, corpus.describe(), jax.devices(), cluster, self._publish, wake)
        batches = Batches(corpus, config.training.batch_size, config.training.seq_len, config.seed)
        profiler = Profiler(folder / "profile", self._publish, cluster, None)
        compiler = Known(task, {name: self._flipping(program, task) for name, program in programs.items()})
        inbox = self._inbox
        self._loop = Loop(
            config, batches, compiler, self.saver, profiler, self._publish, inbox, cluster, None, is_supervised
        )

    def train(self) -> int:
        """Trains to the last step, or to a `Stop`. Returns the number of steps done."""
        return self._loop.run(None)

    def named(self, kind: type[Event]) -> list[Any]:
        """Returns the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def _publish(self, event: Event) -> None:
        self.events.append(event)
        for command in self._answer(event):
            self._inbox.put(command)

    def _flipping(self, program: Program, task: Task) -> Program:
        def step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
            state, loss = program.step(state, batch)
            flip = self._flip(self._loop.at.begun + 1, state)
            return (flipped(state, flip) if flip else state), loss

        by_device = shard_digest_function(program.placement.abstract_state(task))
        return replace(program, step=step, shard_digests=by_device)  # type: ignore[arg-type]
