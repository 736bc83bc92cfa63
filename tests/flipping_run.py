"""A living run in whose state bits flip."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import msgspec
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
from shardtui.engine.training.tools import Tools
from shardtui.engine.wire.commands import AnyCommand
from shardtui.engine.wire.events import Event
from shardtui.engine.wire.inbox import Inbox

from .flips import Flip, flipped
from .programs import Known


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
        tools = Tools(config, compiler, self.saver, profiler, cluster, self._inbox, self._publish, is_supervised)
        self._loop = Loop(tools, batches)

    def train(self) -> int:
        """Trains to the last step, or to a `Stop`. Returns the number of steps done."""
        return self._loop.run(None)

    def send(self, command: AnyCommand) -> None:
        """Sends a command, as a viewer would."""
        self._inbox.put(command)

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
