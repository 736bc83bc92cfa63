"""Every mesh of a slice that could be a preset, tried by formula."""

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

MOST = 6
"""Meshes that are worth a compilation."""
WHOLE = ("", "-whole.vocab", "-whole.heads", "-whole.heads-whole.vocab")
"""What `model` may leave whole: a vocabulary or heads that do not divide by it."""


def search(task: Task, topology: Topology, known: Sequence[Preset]) -> list[Row]:
    """The best meshes that fit by formula, none that is laid out like one of `known`; where none fits, the nearest.

    Raises Invalid where there is no formula."""
    if isinstance(task.config.model, UserModel):
        raise Invalid("--search goes by formula, which there is of the built-in model alone: name meshes as presets")
    layouts = {_layout(preset, topology.devices) for preset in known}
    best: dict[frozenset[tuple[str, int]], Row] = {}
    for preset in candidates(topology.devices):
        if _layout(preset, topology.devices) in layouts:
            continue
        row = estimate_row(task, preset, topology.devices, topology)
        if row.estimate is None:
            continue
        same = frozenset(row.mesh.items())  # in another order, or with other dims whole
        best[same] = ranked([row, *([best[same]] if same in best else [])])[0]
    return ranked(list(best.values()))[:MOST]


def candidates(devices: int) -> Iterator[Preset]:
    """Each way to write a number of devices as a product over the axes, in each order of the axes."""
    for sizes in _factorisations(devices, len(MESH_RULES)):
        axes = [f"{axis}{size}" for axis, size in zip(MESH_RULES, sizes, strict=True) if size > 1]
        for order in itertools.permutations(axes or ["data1"]):
            for whole in WHOLE if any(axis.startswith("model") for axis in order) else WHOLE[:1]:
                preset = mesh_preset("-".join(order) + whole)
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
    """Equal for presets that lay everything out alike: axes of size 1 split nothing."""
    sizes = {axis: size for axis, size in preset.sizes(devices).items() if size > 1}
    rules = {logical: tuple(axis for axis in axes if axis in sizes) for logical, axes in preset.rules.items()}
    kept = tuple(sorted((logical, axes) for logical, axes in rules.items() if axes))
    return tuple(sizes.items()), kept, repr(preset.overrides)
