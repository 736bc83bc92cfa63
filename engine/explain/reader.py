"""Reads a propagated module into a `Graph`."""

import re
from itertools import count
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from .attributes import (
    EDGES,
    FRONTEND,
    MEMORY,
    ORIGINS,
    SHARDING,
    attribute_of,
    axes_in,
    axes_of_dims,
    axis_of,
    captured,
    devices_of,
    each_of,
    entry,
    has_memory_kinds,
    last_of,
    main_of,
    memory_of,
    mesh_of,
    origins_in,
    origins_of,
    rule_of,
    shardings,
    string,
    text_of,
    type_of,
)
from .graph import ASKS, TYPED, Axis, Graph, Operation, Place, Places, PropagationStep, Rule, Tensor
from .names import names_of

EDGE = "sdy.data_flow_edge"
BODIES = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.named_computation", "sdy.manual_computation")
"""Operations whose regions are part of the program. The regions of others compute on single elements."""
TAG = "explained"
"""Attribute of every operation: its index in the graph, by which a later pass's operation is recognised."""
STEPS = re.compile(r'step-(\d+)|"([^"]+)"(:\(\d+\)\d+)? = ((?:operand|result)-\d+) -> \[([^\]]*)\]')
ASKING = re.compile(r"(sharding_constraint|reshard|device_put)$")
"""Names of operations by which a program asks for a layout."""


class Given(NamedTuple):
    """The mesh axes that a program gives its arguments and its results."""

    arguments: list[list[Axis]]
    results: list[list[Axis]]


def given(module: Any) -> Given:
    """Returns what a module asks for before the propagation, which does not keep it apart from what it adds."""
    with module.context:
        main = main_of(module)
        block = main.regions[0].blocks[0]
        kinds = ((block.arguments, "arg_attrs"), (last_of(block).operands, "res_attrs"))
        return Given(*([axes_in(entry(each, SHARDING)) for each in each_of(main, *kind)] for kind in kinds))


def read(module: Any, asked: Given) -> Graph:
    """Returns the graph of a propagated module, and tags the module's operations. `asked`: before the propagation."""
    with module.context:
        return _Reader(module, asked).graph


class _Reader:
    def __init__(self, module: Any, asked: Given) -> None:
        top = list(module.regions[0].blocks[0].operations)
        self.graph = Graph(mesh_of(top), has_memory_kinds(module))
        self._devices = devices_of(top)
        main = main_of(module)
        self._places = Places(last_of(main.regions[0].blocks[0]).location)
        self._nodes: dict[ir.Value, int] = {}
        self._rules: dict[Any, Rule] = {}
        self._edges: list[tuple[int, int, str]] = []
        """Operation, tensor (of a data flow edge, else -1) and steps as text, until all joined tensors are known."""
        self._captured: list[Any] = []
        self._within: int | None = None
        self._read_main(main, asked)
        for operation, edge, text in self._edges:
            self._read_steps(operation, edge, text)

    def _read_main(self, main: Any, asked: Given) -> None:
        block, graph = main.regions[0].blocks[0], self.graph
        every = zip(block.arguments, each_of(main, block.arguments, "arg_attrs"), asked.arguments, strict=True)
        for value, attributes, axes in every:
            tensor = self._tensor(value, entry(attributes, SHARDING))
            tensor.names.append(self._places.of(value.location).op_name)
            tensor.asked, tensor.given = origins_in(entry(attributes, ORIGINS)), axes
            tensor.memory = string(entry(attributes, MEMORY))
            tensor.axes = self._even(tensor)
            graph.arguments.append(self._nodes[value])
        returned = self._read_block(block, "")
        for index, attributes in enumerate(each_of(main, returned, "res_attrs")):
            self._read_result(returned[index], attributes, asked.results[index])
        graph.operations[-1].place = Place("", "")  # its own is where the program is lowered
        graph.operations[-1].rule = _identity([graph.tensors[each].shape for each in returned])

    def _read_result(self, returned: int, attributes: Any, asked: list[Axis]) -> None:
        """Reads a result of the program, which may be laid out otherwise than what is returned as it."""
        graph, last, number = self.graph, self.graph.operations[-1], len(self.graph.result_names)
        tensor = self._add(graph.tensors[returned].shape, graph.tensors[returned].dtype, entry(attributes, SHARDING))
        tensor.asked, tensor.given = origins_in(entry(attributes, ORIGINS)), asked
        tensor.memory, tensor.axes = string(entry(attributes, MEMORY)), self._even(tensor)
        tensor.operation, tensor.result, tensor.joined = len(graph.operations) - 1, number, [returned]
        graph.results.append(len(graph.tensors) - 1)
        last.results.append(graph.results[-1])
        info = entry(attributes, "jax.result_info")
        graph.result_names.append(ir.StringAttr(info).value if info else f"result[{number}]")
        if (text := entry(attributes, EDGES)) is not None:
            self._edges.append((len(graph.operations) - 1, graph.results[-1], str(text)))

    def _even(self, tensor: Tensor) -> list[list[Axis]]:
        """The axes of an argument or a result: whole ones, until one that does not divide its dim; the compiler leaves
        out the rest."""
        prefixes = [[axes[:count] for count in range(len(axes), -1, -1)] for axes in tensor.axes]
        sizes = zip(tensor.shape, prefixes, strict=True)
        return [
            next(each for each in its if size % self.graph.parts(each) == 0 and ":" not in "".join(each))
            for size, its in sizes
        ]

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
        place = place._replace(source=place.source or line)
        found = Operation(_name(op, place), operands, [], place, rule_of(op, self._rules), self._within)
        self.graph.operations.append(found)
        op.attributes[TAG] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index)
        for position, tensor in enumerate(operands):
            self.graph.tensors[tensor].uses.append((index, position))
        asked = origins_of(op)
        for position, (value, sharding) in enumerate(zip(op.results, shardings(op), strict=True)):
            tensor = self._tensor(value, sharding)
            tensor.operation, tensor.result, tensor.asked = index, position, origins_in(asked[position])
            found.results.append(self._nodes[value])
            tensor.memory = memory_of(op)
        if origin := text_of(op, "sdy.sharding_origin_name"):
            self.graph.origins[origin] = index
        if (text := attribute_of(op, EDGES)) is not None:
            self._edges.append((index, -1, str(text)))
        for position, name in names_of(attribute_of(op, FRONTEND)):
            self.graph.tensors[found.results[position]].names.append(name)
        if (constant := captured(op)) is not None and constant not in self._captured:
            self._captured.append(constant)
            self.graph.tensors[found.results[0]].names.append(f"captured[{len(self.graph.captured)}]")
            self.graph.captured.append(found.results[0])
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
        outer = self._within
        if op.name == "sdy.manual_computation":
            self._within = len(self.graph.operations) - 1
        returned = [self._read_block(block, found.place.source) for block in blocks]
        self._within = outer
        self._join(found.results, [found.operands, returned[-1]] if op.name == "stablehlo.while" else returned)

    def _join(self, results: list[int], sides: list[list[int]]) -> None:
        for position, result in enumerate(results):
            self.graph.tensors[result].joined = [side[position] for side in sides]

    def _read_edge(self, op: Any, node: int) -> None:
        """Reads a data flow edge: it returns a value that control flow passes on, with its sharding."""
        self._nodes[op.results[0]] = node
        tensor = self.graph.tensors[node]
        if (sharding := attribute_of(op, "sharding")) is not None:
            tensor.axes = axes_of_dims(sharding, len(tensor.shape))
        tensor.asked = origins_in(attribute_of(op, ORIGINS))
        if (text := attribute_of(op, EDGES)) is not None:
            self._edges.append((tensor.operation or 0, node, str(text)))

    def _tensor(self, value: Any, sharding: Any) -> Tensor:
        self._nodes[value] = len(self.graph.tensors)
        return self._add(*type_of(value), sharding)

    def _add(self, shape: list[int], dtype: str, sharding: Any) -> Tensor:
        found = Tensor(shape, dtype, [[] for _ in shape])
        self.graph.tensors.append(found)
        if sharding is not None:
            attribute = sdy.TensorShardingAttr(sharding)
            found.axes = axes_of_dims(sharding, len(shape))
            found.unreduced = [axis_of(axis) for axis in attribute.unreduced_axes]
            found.device = self._devices.get(str(attribute.mesh_or_ref).removeprefix("@"))
        return found

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


def _identity(shapes: list[list[int]]) -> Rule:
    """The rule of the program's return: each dim of a result is that dim of what is returned."""
    numbers = count()
    factors = [[[next(numbers)] for _ in shape] for shape in shapes]
    return Rule(factors, factors, set(), set(), set(), set())


def _name(op: Any, place: Place) -> str:
    return TYPED if op.name == ASKS and not ASKING.search(place.op_name) else op.name


def _member(groups: dict[str, list[int]], role: str) -> int | None:
    kind, _, index = role.partition("-")
    members = groups[kind]
    return members[int(index)] if int(index) < len(members) else None
