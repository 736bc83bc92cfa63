"""Reads Shardy's attributes: shardings and lists of mesh axes."""

import re
from typing import Any

from jaxlib.mlir.dialects import sdy

from .graph import Axis

AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')


def axes_of_dims(sharding: Any, rank: int) -> list[list[Axis]]:
    """Returns the mesh axes of each dim of a tensor with this sharding."""
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    axes = [[_axis(axis) for axis in sdy.DimensionShardingAttr(dim).axes] for dim in dims]
    return axes + [[] for _ in range(rank - len(axes))]


def axes_in(attribute: Any) -> list[Axis]:
    """Returns the mesh axes that an attribute names, each once."""
    return list(dict.fromkeys(name + part for name, part in AXIS.findall(str(attribute))))


def part_of_argument(shard_map: Any, index: int, rank: int) -> list[list[Axis]]:
    """Returns the mesh axes of each dim of an argument in a `shard_map`: those that it leaves to the partitioner."""
    attributes = shard_map.attributes
    manual = axes_in(attributes["manual_axes"])
    asked = list(sdy.TensorShardingPerValueAttr(attributes["in_shardings"]).shardings)[index]
    return [[axis for axis in axes if axis not in manual] for axes in axes_of_dims(asked, rank)]


def shardings(op: Any) -> list[Any]:
    """Returns the sharding of each result of an operation; None if it has none."""
    attributes = op.attributes
    if op.name == "sdy.sharding_constraint":
        return [attributes["sharding"]]
    for name in ("sdy.sharding", "out_shardings"):
        if name in attributes:
            return list(sdy.TensorShardingPerValueAttr(attributes[name]).shardings)
    return [None] * len(op.results)


def _axis(attribute: Any) -> Axis:
    axis = sdy.AxisRefAttr(attribute)
    part = axis.sub_axis_info
    if part is None:
        return axis.name
    size = sdy.SubAxisInfoAttr(part)
    return f"{axis.name}:({size.pre_size}){size.size}"
