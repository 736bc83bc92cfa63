"""Finds what makes a preset fit that is too large: compiles changes one after the other, each in its own process."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from ...engine.planning.fitting import (
    Fit,
    Trial,
    accumulated,
    next_batch,
    rematerialized,
    tried,
    with_other_batch,
)
from ...engine.planning.ranking import Board, Cost, ranked
from ...engine.spec.config import RunConfig, UserModel
from ...engine.spec.preset_reader import load_preset
from ...engine.spec.search import CHOSEN, SearchRequest
from ...engine.spec.topology import load_topology
from .engine_process import Answer, EngineProcess
from .planner import usual_presets

OTHERS = 2
"""Other presets, or without one that fits by formula, other meshes that are compiled."""


@dataclass(frozen=True)
class Trying:
    """A step that is being compiled."""

    trial: Trial
    number: int
    """How many were compiled before it, and this one."""
    began: float
    """Start, in seconds of `time.monotonic`."""
    process: EngineProcess
    """The compiler's."""


class Fitter:
    """What makes one preset fit. Only one process runs at a time; it ends if whoever iterates is cancelled."""

    def __init__(self, config: RunConfig, topology: str, preset: str, nice: int = 0) -> None:
        """`preset`: a name or a file. `nice`: added to the niceness of the compiler's process."""
        self._config, self._topology, self._reference, self._nice = config, topology, preset, nice
        self.slice, self._preset = load_topology(topology), load_preset(preset)
        self.fit: Fit = Fit(capacity_bytes=self.slice.chip.memory, trials=[])
        """What was compiled so far."""
        self.trying: Trying | None = None
        """None between compilations."""

    async def fits(self) -> AsyncIterator[Fit]:
        """Yields what is known when a compilation begins, and when it has ended. The first one is what was asked for.

        If that fits, or cannot be compiled, it is the only one.
        """
        async for config, preset in self._candidates():
            trial = tried(config, load_preset(preset).name)
            process = EngineProcess(self._nice)
            self.trying = Trying(trial, len(self.fit.trials) + 1, time.monotonic(), process)
            try:
                yield self.fit
                answer = await process.ask("compile", config, self._topology, preset)
            finally:
                self.trying = None
            self._add(trial, answer)
            yield self.fit

    async def _candidates(self) -> AsyncIterator[tuple[RunConfig, str]]:
        """Yields what to compile next. What was found in the meantime decides."""
        config, devices = self._config, self.slice.devices
        yield config, self._reference
        if self.fit.trials[0].fits is not False:
            return
        least = self._preset.least_batch(devices, config.training.accumulate_steps)
        seen = set[int]()
        while (size := next_batch(self.fit.batches, self.fit.capacity_bytes, least)) and size not in seen:
            seen.add(size)
            yield with_other_batch(config, size), self._reference
        for changed in accumulated(config, self._preset, devices):
            yield changed, self._reference
        for changed in rematerialized(config):
            if not self.fit.rules_out(tried(changed, self._preset.name)):
                yield changed, self._reference
        for preset in await self._others():
            yield config, preset

    async def _others(self) -> list[str]:
        """Returns the best other presets that fit by formula, or else meshes, by name or file."""
        usual = [preset for preset in usual_presets(self._config)[0] if load_preset(preset).name != self._preset.name]
        found = await self._fitting("plan", *usual)
        if not found and not isinstance(self._config.model, UserModel):
            meshes = SearchRequest(kept=list(CHOSEN))
            found = await self._fitting("search", msgspec.json.encode(meshes).decode())
        references = {load_preset(preset).name: preset for preset in usual}
        return [references.get(name, name) for name in found[:OTHERS]]

    async def _fitting(self, question: str, *about: str) -> list[str]:
        answer = await EngineProcess(self._nice).ask(question, self._config, self._topology, *about)
        if answer.status:
            return []
        rows = msgspec.json.decode(answer.last_line, type=Board).rows
        return [row.preset for row in ranked(rows) if row.verdict == "fits"]

    def _add(self, trial: Trial, answer: Answer) -> None:
        """Adds what the compiler says about a trial."""
        fit = self.fit
        if answer.status:
            trial = replace(trial, problem="; ".join(answer.problems))
            self.fit = replace(fit, trials=[*fit.trials, trial])
            return
        cost = msgspec.json.decode(answer.last_line, type=Cost)
        trial = replace(
            trial,
            peak_bytes=cost.peak_bytes,
            fits=cost.fits,
            step_seconds=cost.step_seconds,
            tokens_per_second=cost.tokens_per_second,
        )
        self.fit = replace(fit, trials=[*fit.trials, trial])
        if self.fit.largest_batch != fit.largest_batch:
            self.fit = replace(self.fit, at_peak=cost.at_peak, peak_buffers=cost.peak_buffers)
