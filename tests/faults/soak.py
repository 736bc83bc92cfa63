"""Hundreds of switches and some saves in one engine: memory, threads and files do not grow after the first round."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import SaveCheckpoint, Stop, SwitchPreset
from shardtui.engine.wire.events import AnyEvent, CheckpointSaved, StepsDone, Switched
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import tiny_config
from ..suite import memory
from .row import Row

PRESETS = ("dp", "fsdp", "tp", "hsdp", "fsdp-tp2")
"""Five, a prime: with strides 1 to 4 around them, a round covers every ordered pair."""
ROUND = [PRESETS[stride * n % 5] for stride in range(1, 5) for n in range(1, 6)]
SWITCHES = 40
STEPS_BETWEEN = 10
SAVE_EVERY = 4
"""Switches between two saves."""
GROWTH = 0.05
"""Fraction by which memory may grow."""


class Held(NamedTuple):
    """Resident bytes, threads and open file descriptors of a process."""

    memory: int
    threads: int
    descriptors: int


def held(pid: int) -> Held:
    threads, descriptors = (len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("task", "fd"))
    return Held(memory("VmRSS", pid), threads, descriptors)


class Soak:
    """Requests each switch once some steps are done since the previous one."""

    def __init__(self, directory: RunDirectory, switches: int) -> None:
        self.client = EngineClient(directory)
        self.wanted = switches
        self.switches: list[Switched] = []
        self.measured: list[Held] = []
        self.step = self.first_step = self.saves = 0
        self._pid = 0
        self._is_requested = False

    async def run(self) -> None:
        """Runs the engine until all switches are done."""
        self.client.start_engine()
        async for events in self.client.events():
            for event in events:
                self._note(event)
            if self.step < (self.switches[-1].step if self.switches else 0) + STEPS_BETWEEN or self._is_requested:
                continue
            done = len(self.switches) - len(ROUND)
            if done >= 0 and done % max(1, self.wanted // 8) == 0:
                self.first_step = self.first_step or self.step
                self.measured.append(held(self._pid))
            if done % SAVE_EVERY == 0:
                await self.client.send(SaveCheckpoint())
            self._is_requested = True
            await self.client.send(SwitchPreset(ROUND[done % len(ROUND)]) if done < self.wanted else Stop())

    def _note(self, event: AnyEvent) -> None:
        self._pid = getattr(event, "pid", self._pid)
        self.saves += isinstance(event, CheckpointSaved)
        if isinstance(event, StepsDone):
            self.step = event.step
        elif isinstance(event, Switched):
            self.switches.append(event)
            self._is_requested = False


def run(times: int) -> Iterator[Row]:
    """Makes `times` × 40 switches after a round that compiles every program."""
    config = tiny_config(run="soak", checkpoints=CheckpointConfig(every_minutes=None))
    soak = Soak(run_directory.create(config), SWITCHES * times)
    asyncio.run(soak.run())
    after, wanted = soak.switches[len(ROUND) :], soak.wanted * STEPS_BETWEEN
    equal = sum(receipt.digests_equal for receipt in after)
    yield Row("switches in one engine", soak.wanted, equal, f"digests equal; {soak.saves} saves beside them")
    steps = soak.step - soak.first_step
    yield Row("steps beside them", wanted, min(steps, wanted), f"{steps:,} in all")
    yield Row("compilations on a revisit", len(after), sum(not receipt.compile_seconds for receipt in after), "none")
    growth = soak.measured[-1].memory / soak.measured[0].memory - 1
    sizes = ", ".join(f"{each.memory / 1e6:.0f}" for each in soak.measured)
    yield Row("memory", 1, growth <= GROWTH, f"{growth:+.1%}: {sizes} MB")
    yield _bounded("threads", [each.threads for each in soak.measured])
    yield _bounded("file descriptors", [each.descriptors for each in soak.measured])


def _bounded(what: str, counts: list[int]) -> Row:
    """Checks that a count does not grow in the second half; thread pools fill up at random before."""
    half = len(counts) // 2
    most = max(counts[:half])
    kept = sum(count <= most for count in counts[half:])
    return Row(what, len(counts) - half, kept, f"second half ≤ first half: {', '.join(map(str, counts))}")
