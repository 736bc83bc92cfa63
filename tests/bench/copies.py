"""What copies of the state in host memory cost the steps: `python tests/bench/run.py copies`.

Steps of nano with a copy now and then, and without, in turns in one process. The cores that write copies are those that
train, as every device here is simulated: on accelerators, only the stall is left.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import jax
from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.copies.copies import POLL_SECONDS, Copies
from shardtui.engine.copies.host_memory import HostMemory
from shardtui.engine.data.source import read_corpus
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.program.memory import keep_freed_blocks
from shardtui.engine.program.program import compile_program

from .figure import Figure, at_most
from .plain import Plain, config

EVERY = 20
"""Steps between copies, and steps that are measured at a time."""
REPEATS = 7
Seconds = tuple[float, float]
"""By the clock, and of all threads together, which other load on the machine hardly changes."""


def run() -> Iterator[Figure]:
    """Measures steps with copies ÷ steps without, and the time of a copy in which no step is dispatched."""
    keep_freed_blocks()
    with TemporaryDirectory() as folder, HostMemory("bench") as memory:
        loop = _Loop(Path(folder), memory)
        loop.seconds(copies=True)  # the first copy compiles, and takes new memory
        clock, processor, stalls, step = [], [], [], []
        for _ in range(REPEATS):
            without, with_copy = loop.seconds(copies=False), loop.seconds(copies=True)
            clock.append(with_copy[0] / without[0])
            processor.append(loop.processor_seconds_of_a_copy() / without[1])
            stalls.append(loop.stall / without[0])
            step.append(without[0] / EVERY)
    against = f"{1e3 * median(step):.0f} ms a step"
    yield at_most(1.01, f"nano with a copy every {EVERY} steps ÷ without", clock, "×", against)
    yield at_most(0.01, f"processor time of a copy ÷ that of {EVERY} steps", processor, "×", against)
    yield at_most(0.01, f"stall of a copy ÷ {EVERY} steps", stalls, "×", against)


class _Loop:
    """Steps and copies as in the engine: each loss is read after the next step is dispatched."""

    def __init__(self, folder: Path, memory: HostMemory) -> None:
        self._plain = plain = Plain(config())
        self._program = compile_program(plain.task, plain.placement)
        self._program.compile_state_functions()
        corpus = read_corpus(plain.task.config.data).describe()
        place, devices = CheckpointDirectory(epath.Path(folder)), jax.devices()
        saver = Saver(place, plain.task.config, plain.task, corpus, devices, Cluster(), print, lambda: None)
        self._copies = Copies(memory.copying(EVERY), 1, saver, plain.task, Cluster(), print, lambda: None)
        self._state, self._number = plain.state(), 0
        self.stall = 0.0
        """Seconds in which the last copy kept the next step from being dispatched, after the one before was done."""

    def processor_seconds_of_a_copy(self) -> float:
        """Returns what a copy takes while no step runs."""
        used = time.process_time()
        self._copies.begin(self._state, self._program, self._number, None, None)
        while (ended := self._copies.ended()) is None:
            time.sleep(POLL_SECONDS)
        self._copies.settle(ended)
        return time.process_time() - used

    def seconds(self, copies: bool) -> Seconds:
        """Returns the seconds of `EVERY` steps, with a copy before the first of them if `copies`."""
        before, began, used = None, time.perf_counter(), time.process_time()
        for number in range(EVERY):
            if copies and number == 0:
                self._copies.begin(self._state, self._program, self._number, None, None)
                self.stall = time.perf_counter() - began
            self._state, loss = self._program.step(self._state, self._plain.batch(self._number))
            if before is not None:
                float(before)
            before, self._number = loss, self._number + 1
            if ended := self._copies.ended():
                self._copies.settle(ended)
        jax.block_until_ready(self._state)
        return time.perf_counter() - began, time.process_time() - used
