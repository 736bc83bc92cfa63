"""Tries every mesh of a slice by formula."""

import itertools
import math
from collections.abc import Iterator, Sequence

from ..base.invalid import Invalid
from ..models.task import Task
from ..spec.config import UserModel
from ..spec.preset import Preset
from ..spec.preset_reader import MESH_RULES, mesh_preset
from ..spec.topology import Topology
from .estimate import estimate_row
from .ranking import Row, ranked

MAX_ROWS = 6
"""Meshes that are worth compiling."""
UNSPLIT_SUFFIXES = ("", "-whole.vocab", "-whole.heads", "-whole.heads-whole.vocab")
"""Dims that `model` may leave unsplit because their size is not divisible by it: the vocabulary, or the heads."""


def search(task: Task, topology: Topology, known: Sequence[Preset]) -> list[Row]:
    """Returns the best meshes by formula, those that fit first, without any laid out like one of `known`.

    Raises Invalid for a user's model, which the formulas do not cover.
    """
    if isinstance(task.config.model, UserModel):
        raise Invalid("--search uses formulas, which cover only the built-in model: name meshes with --preset instead")
    layouts = {_layout(preset, topology.devices) for preset in known}
    best: dict[frozenset[tuple[str, int]], Row] = {}
    for preset in candidates(topology.devices):
        if _layout(preset, topology.devices) in layouts:
            continue
        row = estimate_row(task, preset, topology.devices, topology)
        if row.estimate is None:
            continue
        same = frozenset(row.mesh.items())  # in another axis order, or with other dims unsplit
        best[same] = ranked([row, *([best[same]] if same in best else [])])[0]
    return ranked(list(best.values()))[:MAX_ROWS]


def candidates(devices: int) -> Iterator[Preset]:
    """Yields a preset for each factorisation of the number of devices over the axes, in each order of the axes."""
    for sizes in _factorisations(devices, len(MESH_RULES)):
        axes = [f"{axis}{size}" for axis, size in zip(MESH_RULES, sizes, strict=True) if size > 1]
        for order in itertools.permutations(axes or ["data1"]):
            for unsplit in UNSPLIT_SUFFIXES if any(axis.startswith("model") for axis in order) else ("",):
                preset = mesh_preset("-".join(order) + unsplit)
                assert preset is not None
                yield preset


def _factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in (size for size in range(1, math.isqrt(number) + 1) if number % size == 0):
        for size in {first, number // first}:
            for rest in _factorisations(number // size, parts - 1):
                yield (size, *rest)


def _layout(preset: Preset, devices: int) -> object:
    """Returns a key that is equal for presets with the same layout: axes of size 1 split nothing."""
    sizes = {axis: size for axis, size in preset.sizes(devices).items() if size > 1}
    rules = {logical: tuple(axis for axis in axes if axis in sizes) for logical, axes in preset.rules.items()}
    kept = tuple(sorted((logical, axes) for logical, axes in rules.items() if axes))
    return tuple(sizes.items()), kept, repr(preset.alternatives), repr(preset.overrides)
