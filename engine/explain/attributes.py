"""Attributes of MLIR modules, Shardy's above all, through jaxlib's bindings."""

import math
import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from ..base.user_error import UserError
from .graph import ASKS, Axis, Rule

MEMORY, FRONTEND, PLACED = "mhlo.memory_kind", "mhlo.frontend_attributes", "_xla_buffer_placement"
"""The kind of memory of an argument or a result, and the attribute of an operation that moves a value to another."""
TAKES, DONATED = "tf.aliasing_output", "jax.buffer_donor"
"""The number of the result that takes an argument's place, and the mark of another donated argument."""
SHARDING, ORIGINS, EDGES = "sdy.sharding", "sdy.sharding_origins", "sdy.propagation_edges"
RULE = "sdy.sharding_rule"
ASKED = re.compile(r'(?:"([^"]+)"|([\w.]+)) = "([^"]*)"')
AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')


CONSTANTS = ("sdy.constant", "stablehlo.constant")
LITERAL = 16
"""Elements; a constant with more that differ is an array that the function captured."""


def captured(op: Any) -> Any:
    """Returns the value of a constant that is an array which the function uses but does not take; None for others."""
    if op.name not in CONSTANTS or math.prod(type_of(op.results[0])[0]) <= LITERAL:
        return None
    try:
        value = op.attributes["value"]
    except TypeError:  # of complex numbers, which jax 0.10's bindings only print
        text = str(op).partition("dense<")[2]
        return None if text.startswith("(") else text
    return None if isinstance(value, ir.DenseElementsAttr) and value.is_splat else value


def memory_of(op: Any) -> str:
    """Returns the kind of memory that an operation moves its operand to; empty for other operations."""
    attributes = attribute_of(op, FRONTEND)
    return "" if attributes is None else string(entry(ir.DictAttr(attributes), PLACED))


def has_memory_kinds(module: Any) -> bool:
    """Whether a program says in which memory its arguments and results are: jax only does if it uses several."""
    main = main_of(module)
    return any(MEMORY in each for each in each_of(main, main.regions[0].blocks[0].arguments, "arg_attrs"))


def donated(module: Any) -> tuple[set[int], list[Any]]:
    """Returns the results that take the place of donated arguments, by number, and the other donated arguments, whose
    memory results of the same size take."""
    main = main_of(module)
    arguments = main.regions[0].blocks[0].arguments
    each = each_of(main, arguments, "arg_attrs")
    taken = {ir.IntegerAttr(attributes[TAKES]).value for attributes in each if TAKES in attributes}
    return taken, [value for value, attributes in zip(arguments, each, strict=True) if DONATED in attributes]


def rule_of(op: Any, known: dict[Any, Rule]) -> Rule | None:
    """Returns how Shardy splits the dims of an operation; None if it does not say. `known`: rules by attribute, which
    many operations share."""
    attribute = attribute_of(op, RULE)
    if attribute is not None and attribute not in known:
        rule = sdy.OpShardingRuleAttr(attribute)
        known[attribute] = Rule(
            _factors(rule.operand_mappings),
            _factors(rule.result_mappings),
            set(rule.reduction_factors),
            set(rule.need_replication_factors),
            set(rule.blocked_propagation_factors),
            set(rule.permutation_factors),
        )
    return None if attribute is None else known[attribute]


def _factors(mappings: Any) -> list[list[list[int]]]:
    return [
        [list(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(each).dim_mappings]
        for each in mappings
    ]


def mesh_of(top: list[Any]) -> dict[str, int]:
    """The axes of all meshes of a module: Shardy has dropped axes of size 1. Raises UserError if an axis of two meshes
    has two sizes."""
    meshes = [sdy.MeshAttr(op.operation.attributes["mesh"]) for op in top if _is_mesh(op)]
    sizes: dict[str, int] = {}
    for axis in (sdy.MeshAxisAttr(axis) for mesh in meshes for axis in mesh.axes):
        if sizes.setdefault(axis.name, axis.size) != axis.size:
            both = f"{sizes[axis.name]} devices in one mesh and {axis.size} in another"
            raise UserError(f"the axis {axis.name} has {both}: give one of them another name")
    return sizes


def _is_mesh(op: Any) -> bool:
    return op.operation.name == "sdy.mesh"


def devices_of(top: list[Any]) -> dict[str, int]:
    """The device of each mesh that is only one, by the name of the mesh."""
    meshes = ((text_of(op, "sym_name"), sdy.MeshAttr(op.operation.attributes["mesh"])) for op in top if _is_mesh(op))
    return {name: mesh.device_ids[0] for name, mesh in meshes if len(mesh.device_ids) == 1}


def main_of(module: Any) -> Any:
    return ir.SymbolTable(module.operation)["main"]


def last_of(block: Any) -> Any:
    return block.operations[-1].operation


def owner_of(value: Any) -> Any:
    """Returns the operation that computes a value; None for an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def walked(operation: Any, *names: str) -> list[Any]:
    """Returns the operations of these names in an operation, also in regions of regions; without names, all."""
    found: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if not names or op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found


def each_of(main: Any, values: Sequence[Any], name: str) -> list[Any]:
    """The attributes of each argument or each result of a function."""
    return list(attribute_of(main, name) or [{}] * len(values))


def origins_of(op: Any) -> list[Any]:
    """The origins of each result: an array of them, or, for an operation of one result, those of that one."""
    found = attribute_of(op, ORIGINS)
    return list(found) if isinstance(found, ir.ArrayAttr) else [found] * len(op.results)


def origins_in(origins: Any) -> dict[Axis, str]:
    if origins is None:
        return {}
    return {quoted or bare: origin for quoted, bare, origin in ASKED.findall(str(origins))}


def attribute_of(op: Any, name: str) -> Any:
    return entry(op.attributes, name)


def entry(attributes: Any, name: str) -> Any:
    return attributes[name] if name in attributes else None  # noqa: SIM401 (it has no `get` in jax 0.10)


def text_of(op: Any, name: str) -> str:
    return string(attribute_of(op.operation, name))


def string(attribute: Any) -> str:
    return "" if attribute is None else ir.StringAttr(attribute).value


def type_of(value: Any) -> tuple[list[int], str]:
    try:
        type_ = ir.RankedTensorType(value.type)
    except ValueError:  # a token
        return [], str(value.type)
    return list(type_.shape), str(type_.element_type)


def axes_of_dims(sharding: Any, rank: int) -> list[list[Axis]]:
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    axes = [[axis_of(axis) for axis in sdy.DimensionShardingAttr(dim).axes] for dim in dims]
    return axes + [[] for _ in range(rank - len(axes))]


def axes_in(attribute: Any) -> list[Axis]:
    """Returns the mesh axes that an attribute names, each once."""
    return list(dict.fromkeys(name + part for name, part in AXIS.findall(str(attribute))))


def axes_of_argument(shard_map: Any, index: int, rank: int, is_manual: bool) -> list[list[Axis]]:
    """Returns the mesh axes of each dim of a `shard_map`'s argument: the manual ones, along which the code has a
    device's part, or those that are left to the partitioner."""
    manual = axes_in(shard_map.attributes["manual_axes"])
    asked = list(sdy.TensorShardingPerValueAttr(shard_map.attributes["in_shardings"]).shardings)[index]
    return [[axis for axis in axes if (axis in manual) == is_manual] for axes in axes_of_dims(asked, rank)]


def shardings(op: Any) -> list[Any]:
    """Returns the sharding of each result. An operation without any may have one, too, as `jax.debug.print` does."""
    attributes = op.attributes
    if op.name == ASKS:
        return [attributes["sharding"]]
    for name in (SHARDING, "out_shardings"):
        if name in attributes:
            return list(sdy.TensorShardingPerValueAttr(attributes[name]).shardings)[: len(op.results)]
    return [None] * len(op.results)


def axis_of(attribute: Any) -> Axis:
    axis = sdy.AxisRefAttr(attribute)
    part = axis.sub_axis_info
    if part is None:
        return axis.name
    size = sdy.SubAxisInfoAttr(part)
    return f"{axis.name}:({size.pre_size}){size.size}"
