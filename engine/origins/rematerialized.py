"""Involuntary full rematerializations: values that the compiler replicates, because it cannot go from one layout to the
other. Its warning has neither mesh axes nor a line of the user's.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from ..analysis.device_groups import axes_of
from ..base import figures
from ..wire.descriptions import RematerializationInfo
from .explanation import Explanation, Rematerialization, ValueOrigin
from .words import at

TILES = re.compile(r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
"""Tiles of each dim (a last one may be replicas), then an iota of devices: its dims and their order."""
NAMED = re.compile(r"\{mesh\[[^\]]*\], \[([^\]]*)\]")
"""Dims, each with its mesh axes by name, as jax 0.12 has them: `{mesh['data'=4], [{'data'}, {}]}`."""
DIM, AXIS = re.compile(r"\{([^{}]*)\}"), re.compile(r"'([^']+)'(:\(\d+\)\d+)?")
MOST_DIMS = 16
"""Dims of a value without tiles."""
Layout = list[list[str]]


def rematerialized(found: RematerializationInfo, explanation: Explanation) -> Rematerialization:
    """Returns what a warning of the compiler is about, in terms of the explained program."""
    before, after = (_layout(text, explanation.mesh) for text in (found.from_sharding, found.to_sharding))
    rank = len(found.shape)
    value = _value(found, explanation.values)
    if value is None:
        return Rematerialization(
            value=found.op_name, before=before[:rank], after=after[:rank], source=found.source, because=[]
        )
    conflicts = [link for link in value.origin if link.kind == "conflict"]
    ends = {link.axis: link for link in value.origin if link.kind != "conflict"}
    return Rematerialization(
        value=value.name,
        before=before[:rank],
        after=after[:rank],
        source=next(filter(None, [value.source, *(link.source for link in conflicts)]), found.source),
        because=[
            *(f"{axis}: {end.what}{at(end.source)}" for axis, end in ends.items()),
            *(f"dim {link.dim} not over {link.axis}: {link.what}{at(link.source)}" for link in conflicts),
        ],
    )


def _layout(text: str, mesh: Mapping[str, int]) -> Layout:
    """The mesh axes of each dim; those of a last dim of replicas are included."""
    if named := NAMED.match(text):
        return [[name + part for name, part in AXIS.findall(dim)] for dim in DIM.findall(named[1])]
    tiles = TILES.match(text)
    if not tiles:
        return [[] for _ in range(MOST_DIMS)]
    counts, dims = ([int(size) for size in tiles[group].split(",")] for group in (1, 2))
    order = [int(dim) for dim in tiles[3].split(",")] if tiles[3] else range(len(dims))
    devices = np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(counts)
    return [_axes(devices, dim, mesh) for dim in range(len(counts))]


def _axes(devices: np.ndarray, dim: int, mesh: Mapping[str, int]) -> list[str]:
    """The mesh axes along which the parts of one dim lie."""
    groups = np.moveaxis(devices, dim, -1).reshape(-1, devices.shape[dim])
    return axes_of([tuple(map(int, group)) for group in groups], mesh)


def _value(found: RematerializationInfo, values: Sequence[ValueOrigin]) -> ValueOrigin | None:
    """The value of a warning: an argument by its name, else what its line computes last."""
    same = (each for each in values if found.op_name == each.name and not each.source)
    at_line = (each for each in values if found.source and each.source == found.source)
    named = (each for each in values if figures.op(found.op_name) == each.name)
    return next(same, None) or next(at_line, None) or next(named, None)
