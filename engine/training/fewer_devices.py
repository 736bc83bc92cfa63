"""Fits a run to fewer devices than it had: another mesh, another preset, or a step in micro-batches."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
from msgspec.structs import replace

from ..base import formatting
from ..distributed.cluster import Cluster
from ..distributed.outcomes import Unfit
from ..models.task import Task
from ..planning.automatic_remat import usable
from ..planning.estimate import estimate_row, layout_row
from ..planning.goal import ranked
from ..planning.ranking import Row
from ..planning.step_trace import arguments
from ..program.memory import limit
from ..program.presets import known_presets
from ..spec.config import Restart, RunConfig
from ..spec.preset import Preset
from ..spec.preset_files import is_pitfall
from ..spec.preset_reader import load_preset, name_of


@dataclass(frozen=True)
class Fitted:
    """A run on the devices that are left. Batches and losses stay the same as on all devices."""

    config: RunConfig
    warnings: list[str] = field(default_factory=list)
    """Differences from the run on all of its devices, with reasons."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """The preset in use, by name, to the run's preset; empty if the run keeps its own."""
    devices: int | None = None


def fit(
    config: RunConfig,
    task: Task,
    devices: Sequence[jax.Device],
    restart: Restart,
    created: Path | None,
    cluster: Cluster,
) -> Fitted:
    """Returns the run on `devices`, under the first that fits of its own preset, --fallback and all presets. If some of
    a process's devices are left out, each preset is tried on all others, then on fewer and fewer. Raises Unfit if
    nothing fits. Every process calls it: what fits depends on the process whose devices have the least memory."""
    capacity = usable(cluster.all_gather(limit(devices, config.device_memory), int | None), margin=0)
    search = _Search(config, task, devices, capacity, restart.fallback, created)
    left_out = restart.attempt.left_out if restart.attempt else ()
    counts = range(len(devices), 0, -1) if left_out else [len(devices)]
    found = search.first(*counts)
    if found is None:
        raise _unfit(search, len(devices), restart)
    chosen, accumulate_steps, count = found
    warnings = [f"without device {', '.join(map(str, left_out))}, which was wrong"] if left_out else []
    if count < len(devices):
        warnings.append(f"{chosen.name} uses {count} of {len(devices)} devices: it does not fit more")
    warnings += search.words(chosen, count)
    if accumulate_steps != config.training.accumulate_steps:
        parts = formatting.counted(accumulate_steps, "micro-batch")
        warnings.append(f"each step in {parts}, whose activations fit {formatting.counted(count, 'device')}")
    kept = [switch for switch in config.switches if not search.problems(search.known[name_of(switch.preset)], count)]
    dropped = [switch for switch in config.switches if switch not in kept]
    warnings += [f"--switch {switch.step}:{switch.preset}: left out: it does not fit" for switch in dropped]
    training = replace(config.training, accumulate_steps=accumulate_steps)
    fitted = replace(config, preset=chosen.reference, switches=tuple(kept), training=training)
    replaced = {} if chosen.name == search.own.name else {chosen.name: config.preset}
    return Fitted(fitted, warnings, replaced, count if count < len(devices) else None)


def _unfit(search: "_Search", devices: int, restart: Restart) -> Unfit:
    assert restart.attempt, "only a supervised run is started again"
    count = restart.attempt.processes
    fewer = next((n for n in range(count - 1, 0, -1) if search.first(devices // count * n)), None)
    instead = f"on {fewer} of {count} processes, one does" if fewer else "nor on fewer processes"
    return Unfit(fewer, f"no preset fits {formatting.counted(devices, 'device')}, {instead}: {search.why(devices)}")


class _Search:
    """Looks for a preset by its layout and, if the memory of the devices is known, by its trace."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        devices: Sequence[jax.Device],
        capacity: int | None,
        fallback: Sequence[str],
        created: Path | None,
    ) -> None:
        self._config, self._task, self._devices, self._capacity = config, task, devices, capacity
        self.known = known_presets(config, created)[0]
        self.own = self.known[name_of(config.preset)]
        self._fallback = [self.known.get(name) or load_preset(name) for name in fallback]
        self.known |= {preset.name: preset for preset in self._fallback}

    def first(self, *counts: int) -> tuple[Preset, int, int] | None:
        """Returns the first preset that fits the first of these numbers of devices that it fits; None if none does.
        With it, in how many micro-batches a step has to be, and the number of devices."""
        others = [preset for preset in self.known.values() if not is_pitfall(preset.name)]
        for presets in ([self.own], *([preset] for preset in self._fallback), others):
            for count, (accumulate_steps, task) in itertools.product(counts, self._tasks()):
                rows = [row for each in presets if (row := self._row(task, each, count, accumulate_steps))]
                if len(rows) > 1:
                    rows = ranked([self._traced(task, row, count) for row in rows])
                if rows:
                    return self.known[rows[0].preset], accumulate_steps, count
        return None

    def problems(self, preset: Preset, devices: int) -> list[str]:
        return layout_row(self._task, preset.shrunk(devices), devices, None).problems

    def why(self, devices: int) -> str:
        """Returns why the run's preset does not fit."""
        return "; ".join(self.problems(self.own, devices)) or "the memory of its trace"

    def words(self, chosen: Preset, devices: int) -> Iterator[str]:
        """Yields the differences between the chosen preset and the run's, if any."""
        own, mesh = self.own, formatting.axes(chosen.shrunk(devices).sizes(devices))
        count = formatting.counted(devices, "device")
        if chosen.name != own.name:
            in_place = f"{chosen.name} ({mesh}) in place of {own.name}"
            yield f"{in_place}, which does not fit {count}: {self.why(devices)}"
        elif own.size_problem(devices):
            yield f"{own.name} on {count}: mesh {mesh} in place of {formatting.axes(own.mesh)}"

    def _tasks(self) -> Iterator[tuple[int, Task]]:
        """Yields numbers of micro-batches with the task."""
        training = self._config.training
        yield training.accumulate_steps, self._task
        count = 2 * training.accumulate_steps
        while training.batch_size % count == 0:
            config = replace(self._config, training=replace(training, accumulate_steps=count))
            yield count, self._task.with_config(config)
            count *= 2

    def _row(self, task: Task, preset: Preset, devices: int, accumulate_steps: int) -> Row | None:
        """Returns the row of a preset; None if it does not fit. It is traced only if the memory of the devices is known
        and holds the state."""
        if preset.accumulation_problem(devices, self._config.training.batch_size, accumulate_steps):
            return None
        fitted = preset.shrunk(devices)
        row = layout_row(task, fitted, devices, None)
        if row.problems or self._capacity is None:
            return None if row.problems else row
        if sum(arguments(task, fitted, devices).values()) > self._capacity:
            return None
        row = self._traced(task, row, devices)
        return None if row.estimate and row.estimate.peak_bytes > self._capacity else row

    def _traced(self, task: Task, row: Row, devices: int) -> Row:
        if row.estimate or row.no_estimate:
            return row
        return estimate_row(task, self.known[row.preset].shrunk(devices), devices, None, self._devices)
