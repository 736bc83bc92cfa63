"""The meshes and settings that a search tries. Does not import jax."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from ..base.user_error import UserError
from ..spec.preset import Preset
from ..spec.preset_reader import MESH_RULES, mesh_preset
from ..spec.topology import Topology, crossing

MOST_SPLIT = 3
CHATTY = ("seq", "model", "expert")
"""Mesh axes with collectives in every layer, before the next operation can begin: DCN would hold up each of them."""
UNSPLIT_SUFFIXES = ("", "-whole.vocab", "-whole.heads", "-whole.heads-whole.vocab")
"""Dims that `model` may leave unsplit because their size is not divisible by it: the vocabulary, or the heads."""
MOST_TOKENS = 2**24
"""Tokens in a batch at most, unless the largest batch is searched: as many as Llama 3 405B was trained with at last
(Dubey et al. 2024, section 3.4.1)."""
PARTS = 8
"""Steps between a batch and twice that batch, where the largest is searched."""

Sizes = Mapping[str, int]


def meshes(devices: int, axes: Sequence[str] = tuple(MESH_RULES)) -> Iterator[dict[str, int]]:
    """Yields each factorisation of the devices over up to `MOST_SPLIT` of the axes, without axes of size 1."""
    for sizes in _factorisations(devices, len(axes)):
        mesh = {axis: size for axis, size in zip(axes, sizes, strict=True) if size > 1}
        if len(mesh) <= MOST_SPLIT:
            yield mesh or {"data": 1}


def orders(mesh: Sizes, topology: Topology) -> list[dict[str, int]]:
    """Returns the orders of the axes that can be laid over the slices: if there are any, only those whose chatty axes
    stay inside a slice."""
    inside, across = list[dict[str, int]](), list[dict[str, int]]()
    for order in map(dict, itertools.permutations(mesh.items())):
        with suppress(UserError):
            has_chatty = set(CHATTY) & set(crossing(order, topology.domains))
            (across if has_chatty else inside).append(order)
    return inside or across


def suffixes(mesh: Sizes) -> Sequence[str]:
    return UNSPLIT_SUFFIXES if "model" in mesh else ("",)


def named(mesh: Sizes, suffix: str = "") -> Preset:
    preset = mesh_preset("-".join(f"{axis}{size}" for axis, size in mesh.items()) + suffix)
    assert preset is not None
    return preset


def with_microbatches(preset: Preset, devices: int, batch_size: int) -> Iterator[Preset]:
    pipeline = preset.pipeline(devices, batch_size)
    if pipeline is None:
        return
    for count in (pipeline.stages * 2**power for power in range(6)):
        other = mesh_preset(f"{preset.name}-microbatches.{count}")
        if other and count != pipeline.microbatches and not other.microbatch_problem(devices, batch_size):
            yield other


def batches(shards: int, seq_len: int, finest: bool) -> list[int]:
    """Returns batch sizes, smallest first: one sequence a shard, two, four, … up to `MOST_TOKENS`; if `finest`, also
    between them, up to twenty doublings."""
    doubled = [shards * 2**power for power in range(21)]
    if not finest:
        return [size for size in doubled if size * seq_len <= MOST_TOKENS] or doubled[:1]
    between = {size + size * part // PARTS // shards * shards for size in doubled for part in range(PARTS)}
    return sorted(between)


def accumulations(group: int) -> list[int]:
    """Returns numbers of micro-batches to accumulate that divide a group of sequences, those that need least memory
    first."""
    return [count for count in (2**power for power in range(10, -1, -1)) if group % count == 0]


def layout_key(preset: Preset, devices: int) -> object:
    """Returns a key that is equal for presets with the same layout: axes of size 1 split nothing."""
    sizes = {axis: size for axis, size in preset.sizes(devices).items() if size > 1}
    rules = {logical: tuple(axis for axis in preset.axes(logical) if axis in sizes) for logical in preset.rules}
    kept = tuple(sorted((logical, axes) for logical, axes in rules.items() if axes))
    others = repr(preset.with_alternatives), repr(preset.overrides)
    return frozenset(sizes.items()), kept, others, preset.microbatches, preset.pipeline_repeats


def _factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in (size for size in range(1, math.isqrt(number) + 1) if number % size == 0):
        for size in {first, number // first}:
            for rest in _factorisations(number // size, parts - 1):
                yield (size, *rest)
