"""Reads a propagated module into a `Graph`, and Shardy's attributes, through jaxlib's MLIR bindings."""

import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from .graph import Axis, Graph, Operation, Place, Places, PropagationStep, Rule, Tensor
from .names import FRONTEND, names_of

EDGE = "sdy.data_flow_edge"
BODIES = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.named_computation", "sdy.manual_computation")
"""Operations whose regions are part of the program. The regions of others compute on single elements."""
TAG = "explained"
"""Attribute of every operation: its index in the graph, by which a later pass's operation is recognised."""
STEPS = re.compile(r'step-(\d+)|"([^"]+)"(:\(\d+\)\d+)? = ((?:operand|result)-\d+) -> \[([^\]]*)\]')
ASKED = re.compile(r'(?:"([^"]+)"|([\w.]+)) = "([^"]*)"')
AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')


def read(module: Any) -> Graph:
    """Returns the graph of a propagated module, and tags the module's operations."""
    with module.context:
        return _Reader(module).graph


class _Reader:
    def __init__(self, module: Any) -> None:
        top = list(module.regions[0].blocks[0].operations)
        self.graph = Graph(_mesh(top))
        self._places = Places()
        self._nodes: dict[ir.Value, int] = {}
        self._rules: dict[Any, Rule] = {}
        self._edges: list[tuple[int, int, str]] = []
        """Operation, tensor (of a data flow edge, else -1) and steps as text, until all joined tensors are known."""
        main = next(op for op in top if op.operation.name == "func.func" and _text(op, "sym_name") == "main")
        self._read_main(main.operation)
        for operation, edge, text in self._edges:
            self._read_steps(operation, edge, text)

    def _read_main(self, main: Any) -> None:
        block, graph = main.regions[0].blocks[0], self.graph
        given = _attribute(main, "arg_attrs") or [{}] * len(block.arguments)
        for value, attributes in zip(block.arguments, given, strict=True):
            tensor = self._tensor(value, _entry(attributes, "sdy.sharding"))
            tensor.names.append(self._places.of(value.location).op_name)
            tensor.asked = _asked(_entry(attributes, "sdy.sharding_origins"))
            graph.arguments.append(self._nodes[value])
        graph.results = self._read_block(block, "")
        named = _attribute(main, "res_attrs") or [{}] * len(graph.results)
        for index, attributes in enumerate(named):
            info = _entry(attributes, "jax.result_info")
            graph.result_names.append(ir.StringAttr(info).value if info else f"result[{index}]")

    def _read_block(self, block: Any, line: str) -> list[int]:
        operands: list[int] = []
        for operation in block.operations:
            operands = self._read_operation(operation.operation, line)
        return operands

    def _read_operation(self, op: Any, line: str) -> list[int]:
        operands = [self._nodes[value] for value in op.operands]
        if op.name == EDGE:
            self._read_edge(op, operands[0])
            return operands
        index = len(self.graph.operations)
        place = self._places.of(op.location)
        found = Operation(op.name, operands, [], Place(place.op_name, place.source or line), self._rule(op))
        self.graph.operations.append(found)
        op.attributes[TAG] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index)
        for position, tensor in enumerate(operands):
            self.graph.tensors[tensor].uses.append((index, position))
        asked = _each(op, "sdy.sharding_origins", len(op.results))
        for position, (value, sharding) in enumerate(zip(op.results, shardings(op), strict=True)):
            tensor = self._tensor(value, sharding)
            tensor.operation, tensor.result, tensor.asked = index, position, _asked(asked[position])
            found.results.append(self._nodes[value])
        if origin := _text(op, "sdy.sharding_origin_name"):
            self.graph.origins[origin] = index
        if (text := _attribute(op, "sdy.propagation_edges")) is not None:
            self._edges.append((index, -1, str(text)))
        for position, name in names_of(_attribute(op, FRONTEND)):
            self.graph.tensors[found.results[position]].names.append(name)
        if op.name in BODIES:
            self._read_regions(op, found)
        elif op.name == "stablehlo.optimization_barrier":
            self._join(found.results, [operands])
        return operands

    def _read_regions(self, op: Any, found: Operation) -> None:
        blocks = [block for region in op.regions for block in region.blocks]
        for block in blocks:
            for position, value in enumerate(block.arguments):
                if op.name == "stablehlo.while":
                    self._nodes[value] = found.results[position]
                else:
                    self._tensor(value, None).joined = [found.operands[position]]
                    self.graph.tensors[self._nodes[value]].operation = len(self.graph.operations) - 1
        returned = [self._read_block(block, found.place.source) for block in blocks]
        self._join(found.results, [found.operands, returned[-1]] if op.name == "stablehlo.while" else returned)

    def _join(self, results: list[int], sides: list[list[int]]) -> None:
        for position, result in enumerate(results):
            self.graph.tensors[result].joined = [side[position] for side in sides]

    def _read_edge(self, op: Any, node: int) -> None:
        """Reads a data flow edge: it returns a value that control flow passes on, with its sharding."""
        self._nodes[op.results[0]] = node
        tensor = self.graph.tensors[node]
        if (sharding := _attribute(op, "sharding")) is not None:
            tensor.axes = axes_of_dims(sharding, len(tensor.shape))
        tensor.asked = _asked(_attribute(op, "sdy.sharding_origins"))
        if (text := _attribute(op, "sdy.propagation_edges")) is not None:
            self._edges.append((tensor.operation or 0, node, str(text)))

    def _tensor(self, value: Any, sharding: Any) -> Tensor:
        shape, dtype = _type(value)
        axes = axes_of_dims(sharding, len(shape)) if sharding is not None else [[] for _ in shape]
        self._nodes[value] = len(self.graph.tensors)
        self.graph.tensors.append(Tensor(shape, dtype, axes))
        return self.graph.tensors[-1]

    def _read_steps(self, operation: int, edge: int, text: str) -> None:
        graph, number = self.graph, 0
        found = graph.operations[operation]
        groups = {"operand": found.operands, "result": found.results}
        if edge >= 0:
            groups = {"operand": graph.tensors[edge].joined, "result": [edge]}
        for step, name, part, role, targets in STEPS.findall(text):
            if step:
                number = int(step)
                continue
            for target in targets.split(", "):
                ends = [_member(groups, each) for each in (role, target)]
                if None not in ends and ends[0] != ends[1]:
                    new = PropagationStep(number, operation, ends[0], role, target)  # type: ignore[arg-type]
                    graph.tensors[ends[1]].steps.setdefault(name + part, []).append(new)  # type: ignore[index]

    def _rule(self, op: Any) -> Rule | None:
        attribute = _attribute(op, "sdy.sharding_rule")
        if attribute is None:
            return None
        if attribute not in self._rules:
            rule = sdy.OpShardingRuleAttr(attribute)
            self._rules[attribute] = Rule(
                _factors(rule.operand_mappings),
                _factors(rule.result_mappings),
                set(rule.reduction_factors),
                {*rule.need_replication_factors, *rule.blocked_propagation_factors},
            )
        return self._rules[attribute]


def _factors(mappings: Any) -> list[list[list[int]]]:
    return [
        [list(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(each).dim_mappings]
        for each in mappings
    ]


def _member(groups: dict[str, list[int]], role: str) -> int | None:
    kind, _, index = role.partition("-")
    members = groups[kind]
    return members[int(index)] if int(index) < len(members) else None


def _mesh(top: list[Any]) -> dict[str, int]:
    """The axes of all meshes of a module: Shardy has dropped axes of size 1."""
    meshes = [sdy.MeshAttr(op.operation.attributes["mesh"]) for op in top if op.operation.name == "sdy.mesh"]
    axes = (sdy.MeshAxisAttr(axis) for mesh in meshes for axis in mesh.axes)
    return {axis.name: axis.size for axis in axes}


def _each(op: Any, name: str, count: int) -> list[Any]:
    """An attribute that has one entry per result, or, for an operation of one result, is the entry."""
    found = _attribute(op, name)
    if found is None:
        return [None] * count
    return list(ir.ArrayAttr(found)) if isinstance(found, ir.ArrayAttr) else [found] * count


def _asked(origins: Any) -> dict[Axis, str]:
    if origins is None:
        return {}
    return {quoted or bare: origin for quoted, bare, origin in ASKED.findall(str(origins))}


def _attribute(op: Any, name: str) -> Any:
    return _entry(op.attributes, name)


def _entry(attributes: Any, name: str) -> Any:
    return attributes[name] if name in attributes else None  # noqa: SIM401 (it has no `get` in jax 0.10)


def _text(op: Any, name: str) -> str:
    found = _attribute(op.operation, name)
    return "" if found is None else ir.StringAttr(found).value


def _type(value: Any) -> tuple[list[int], str]:
    try:
        type_ = ir.RankedTensorType(value.type)
    except ValueError:  # a token
        return [], str(value.type)
    return list(type_.shape), str(type_.element_type)


def axes_of_dims(sharding: Any, rank: int) -> list[list[Axis]]:
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    axes = [[_axis(axis) for axis in sdy.DimensionShardingAttr(dim).axes] for dim in dims]
    return axes + [[] for _ in range(rank - len(axes))]


def axes_in(attribute: Any) -> list[Axis]:
    """Returns the mesh axes that an attribute names, each once."""
    return list(dict.fromkeys(name + part for name, part in AXIS.findall(str(attribute))))


def part_of_argument(shard_map: Any, index: int, rank: int) -> list[list[Axis]]:
    """Returns the mesh axes of each dim of a `shard_map`'s argument that are left to the partitioner."""
    attributes = shard_map.attributes
    manual = axes_in(attributes["manual_axes"])
    asked = list(sdy.TensorShardingPerValueAttr(attributes["in_shardings"]).shardings)[index]
    return [[axis for axis in axes if axis not in manual] for axes in axes_of_dims(asked, rank)]


def shardings(op: Any) -> list[Any]:
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
