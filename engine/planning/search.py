"""Tries meshes, rules and settings by their traces, and returns the candidates that are worth a compilation."""

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
from msgspec.structs import replace

from ..hlo.step_cost import StepCost
from ..models.task import Task
from ..spec.config import RunConfig, UserModel
from ..spec.model_config import POLICIES
from ..spec.preset import Preset
from ..spec.preset_reader import MESH_RULES
from ..spec.topology import Topology
from .candidates import PARTS, accumulations, batches, layout_key, meshes, named, orders, suffixes, with_microbatches
from .estimate import with_cost
from .goal import SearchRequest, configured, gain, rank, ranked
from .ranking import Choice, Row, Settings, settings_of
from .step_trace import SizedStep, arguments, traced_step

MAX_ROWS = 40
ROWS_OF_A_MESH = 4
REFINED = 6
"""Meshes for which all remat policies and other micro-batches are tried."""
ENOUGH = 0.99
"""A batch is large enough with this share of the tokens per second of the largest one that fits."""
LONGEST = 4
"""Largest size of an axis that has a trace for each of its sizes: of pipeline stages, and of the sequence."""
KEPT_STEPS = 16
ESTIMATING = 1 / 3
"""Share of the minutes after which estimates end, however many are made: one at least."""


class Search:
    def __init__(self, task: Task, topology: Topology, request: SearchRequest) -> None:
        self._task, self._topology, self._request = task, topology, request
        self._tasks: dict[str, Task] = {}
        self._rows: dict[tuple[str, ...], Row] = {}
        self._steps: dict[object, SizedStep] = {}
        """Of the mesh that is being tried, in all orders of its axes."""
        self._ends = time.monotonic() + ESTIMATING * 60 * request.minutes
        self._is_users = isinstance(task.config.model, UserModel)
        self.estimated = 0
        self.has_all_estimates = True
        """False once the time for estimates was over before the last one."""

    def rows(self, known: Sequence[Preset]) -> list[Row]:
        """Returns the most promising candidates, best first: meshes of the slice, and `known` presets with a layout
        that no mesh has. Meshes with axes of stages or of the sequence are tried only if no other fits: each of their
        sizes has a trace of its own."""
        found: list[tuple[Preset, list[Row]]] = []
        seen: set[object] = set()
        for preset in self._presets(known, lambda: any(row.verdict == "fits" for _, rows in found for row in rows)):
            if found and time.monotonic() > self._ends:
                self.has_all_estimates = False
                break
            key = layout_key(preset, self._topology.devices)
            if key not in seen and (rows := self._first_rows(preset)):
                found.append((preset, rows))
            seen.add(key)
        found.sort(key=lambda each: min(rank(row, self._request.goal) for row in each[1]))
        for preset, rows in found[:REFINED]:
            if time.monotonic() > self._ends:
                self.has_all_estimates = False
                break
            rows += self._refined(preset, rows)
        return self._finalists(row for _, rows in found for row in rows)

    def _first_rows(self, preset: Preset) -> list[Row]:
        """Returns the rows without remat, and unless the chips compute all the time, with it."""
        found = list[Row]()
        for remat in self._first_remats:
            if not any(map(self._is_bound_by_compute, found)):
                found += self._rows_of(preset, remat)
        return found

    def _is_bound_by_compute(self, row: Row) -> bool:
        cost, goal = row.estimate, self._request.goal
        return bool(cost and goal == "tokens-per-second" and cost.bound == "compute" and row.verdict == "fits")

    def _presets(self, known: Sequence[Preset], fits: Callable[[], bool]) -> Iterator[Preset]:
        """Yields each mesh in its best order, and the known presets; meshes with stages or a split sequence, of which
        each size has a trace of its own, only if nothing `fits`."""
        plain, longer = list[Mapping[str, int]](), list[Mapping[str, int]]()
        for mesh in meshes(self._topology.devices, self._axes):
            own = [size for axis, size in mesh.items() if axis in ("seq", "pipeline")]
            if len(own) < 2 and max(own, default=1) <= LONGEST:
                (longer if own else plain).append(mesh)
        yield from self._in_best_orders(plain)
        unused = MESH_RULES.keys() - set(self._axes)
        for preset in known:
            if preset.axis_types == "auto" and not preset.problems and not unused & preset.mesh.keys():
                yield preset
        if not fits():
            yield from self._in_best_orders(longer)

    def _in_best_orders(self, found: Iterable[Mapping[str, int]]) -> Iterator[Preset]:
        yield from filter(None, (self._in_best_order(orders(mesh, self._topology)) for mesh in found))

    @property
    def _axes(self) -> list[str]:
        """The mesh axes that split a dim of the model. What a user's activations are named is not known."""
        dims = self._task.annotated | {"batch", "seq"} | ({"layers"} if not self._is_users else set())
        return [axis for axis, rules in MESH_RULES.items() if set(rules) - {"batch", "vocab"} & dims or axis == "data"]

    def _in_best_order(self, found: Sequence[Mapping[str, int]]) -> Preset | None:
        """Returns the preset of a mesh in the order that takes least network time, with as many dims split as the model
        allows; None if it allows none."""
        remat, *_ = self._first_remats
        settings: Settings = {} if remat is None else {"remat": remat}
        settings |= {"batch_size": self._topology.devices} if self._is_free("batch_size") else {}
        for suffix in suffixes(found[0]) if found else ():
            row = self._row(named(found[0], suffix), settings)
            if row.problems and {dim.logical_axis for dim in row.indivisible} != {"batch"}:
                continue
            others = [named(order, suffix) for order in found]
            if row.estimate is None:
                return others[0]
            return min(others, key=lambda preset: self._network_seconds(preset, settings))
        return None

    def _network_seconds(self, preset: Preset, settings: Settings) -> float:
        cost = self._row(preset, settings).estimate
        return (cost.network_seconds or 0.0) if cost else math.inf

    @property
    def _first_remats(self) -> Sequence[Choice | None]:
        return (False, True) if self._is_free("remat") and not self._is_users else (None,)

    def _rows_of(self, preset: Preset, remat: Choice | None) -> list[Row]:
        """Returns the estimates with as large a batch, or as few micro-batches to accumulate, as fit, and with less; if
        none fits, with the least."""
        fixed: Settings = {} if remat is None else {"remat": remat}
        ladder = [{**settings, **fixed} for settings in self._ladder(preset)]
        end = bisect_left(ladder, True, key=lambda settings: self._row(preset, settings).verdict == "too large")
        tried = {end - 1, end - 2}
        if self._request.goal == "fits-largest-batch":
            tried.add(end - 1 - PARTS)
        if self._request.goal == "tokens-per-second" and end:
            enough = ENOUGH * self._gain(preset, ladder[end - 1])
            tried.add(bisect_left(ladder[:end], enough, key=lambda settings: self._gain(preset, settings)))
        fitting = [ladder[index] for index in sorted(tried) if 0 <= index < end]
        rows = [self._row(preset, settings) for settings in fitting or ladder[:1]]
        return [row for row in rows if row.estimate]

    def _gain(self, preset: Preset, settings: Settings) -> float:
        return gain(self._row(preset, settings), self._request.goal)

    def _ladder(self, preset: Preset) -> list[Settings]:
        """Returns the batches, or the micro-batches to accumulate, that a preset can be tried with, those that need
        least memory first."""
        shards, training = preset.parts("batch", self._topology.devices), self._task.config.training
        if self._is_free("batch_size"):
            finest = self._request.goal == "fits-largest-batch"
            sizes = [-(-training.batch_size // shards) * shards] if self._is_users else None
            return [{"batch_size": size} for size in sizes or batches(shards, training.seq_len, finest)]
        group, rest = divmod(training.batch_size, shards)
        if rest or not group:
            return []
        if self._is_users or preset.stage_axes or not self._is_free("accumulate_steps"):
            return [{}]
        return [{"accumulate_steps": count} if count > 1 else {} for count in accumulations(group)]

    def _refined(self, preset: Preset, rows: Sequence[Row]) -> list[Row]:
        """Returns estimates with other remat policies, other micro-batches of a pipeline, and of a user's model with
        larger batches."""
        free = self._is_free
        if self._is_users:
            size = configured(self._task.config, rows[0].settings).training.batch_size
            sizes = [size * 2**power for power in (1, 2, 3)] if free("batch_size") else []
            found = [self._row(preset, {"batch_size": size}) for size in sizes]
            return [row for row in found if row.estimate]
        best = configured(self._task.config, ranked(rows, self._request.goal)[0].settings)
        policies = POLICIES if free("remat") and _has_remat(best) else ()
        found = [row for remat in policies for row in self._rows_of(preset, remat)]
        for row in (*rows, *found):
            batch_size = configured(self._task.config, row.settings).training.batch_size
            others = with_microbatches(preset, self._topology.devices, batch_size)
            found += [self._row(other, row.settings) for other in others]
        return [row for row in found if row.estimate]

    def _finalists(self, rows: Iterable[Row]) -> list[Row]:
        found = {row.title: row for row in rows}
        counts, kept = Counter[str](), list[Row]()
        for row in ranked(found.values(), self._request.goal):
            name, *_ = row.preset.partition("-microbatches")
            counts[name] += 1
            kept += [row] if counts[name] <= ROWS_OF_A_MESH else []
        return kept[:MAX_ROWS]

    def _is_free(self, setting: str) -> bool:
        return setting not in self._request.kept

    def _row(self, preset: Preset, settings: Settings) -> Row:
        key = preset.name, *settings_of(settings)
        if key not in self._rows:
            self.estimated += 1
            task, topology = self._task_of(settings), self._topology
            row = with_cost(task, preset, topology.devices, topology, lambda: self._cost(preset, task, settings))
            self._rows[key] = replace(row, settings=self._changes(settings))
        return self._rows[key]

    def _cost(self, preset: Preset, task: Task, settings: Settings) -> StepCost:
        devices, topology = self._topology.devices, self._topology
        key = layout_key(preset, devices), *settings_of(settings)
        if key not in self._steps:
            step = traced_step(task, preset, devices, topology, jax.devices("cpu"))
            self._steps = {**dict(list(self._steps.items())[-KEPT_STEPS:]), key: step}
        return self._steps[key].cost(preset.sizes(devices), arguments(task, preset, devices), topology)

    def _changes(self, settings: Settings) -> Settings:
        config = self._task.config
        return {key: value for key, value in settings.items() if configured(config, {key: value}) != config}

    def _task_of(self, settings: Settings) -> Task:
        key = " ".join(settings_of(settings))
        if key not in self._tasks:
            self._tasks[key] = self._task.with_config(configured(self._task.config, settings))
        return self._tasks[key]


def _has_remat(config: RunConfig) -> bool:
    return not isinstance(config.model, UserModel) and config.model.remat is not False
