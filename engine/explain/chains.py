"""The chain of origins of a mesh axis on a tensor: each tensor that it came from, and who asked for it first."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from ..base import formatting
from .explanation import Link, LinkKind
from .graph import (
    ASKS,
    NOTABLE,
    RETURN,
    SHARD_MAP,
    TRIVIAL,
    TYPED,
    Axis,
    Graph,
    Operation,
    PropagationStep,
    Tensor,
    layout,
    name_of,
    word,
)

MOST_LINKS = 24
"""Links of a chain: the middle of a longer one is left out."""
LATE = 1 << 62
"""The number of a step that the propagation does not record: it comes after all that it does."""
ORIGIN = re.compile(r"(input|output|constraint_\d+|mc_\d+_(?:input|output))(?:: (\d+))?$")


class Reason(NamedTuple):
    axes: Mapping[Axis, str]
    unsharded: Mapping[int, str]


Reasons = Mapping[str, Reason]


class End(NamedTuple):
    """Where a chain ends."""

    kind: LinkKind
    what: str
    source: str
    tensor: int | None = None
    caller: str = ""

    @property
    def words(self) -> str:
        return f"{self.what}{formatting.at(self.source, self.caller)}"

    def link(self, dim: int | None, axis: Axis, value: str = "") -> Link:
        return Link(
            dim=dim, axis=axis, kind=self.kind, what=self.what, source=self.source, caller=self.caller, value=value
        )


@dataclass(frozen=True)
class Chains:
    graph: Graph
    reasons: Reasons
    labels: Mapping[int, str]
    """`Link.value` of each explained tensor."""

    def links(self, tensor: int, axis: Axis) -> list[Link]:
        """Returns the chain of a mesh axis that splits a tensor."""
        dim = self.graph.tensors[tensor].dim_of(axis) or 0
        links: list[Link] = []
        steps = list(self.steps(tensor, axis))
        for source, group in groupby(steps, lambda step: self.graph.operations[step.operation].place.source):
            shown = max(group, key=self._weight)
            if self._weight(shown):
                to = self._label(shown.tensor, tensor)
                links.append(Link(dim=dim, axis=axis, kind="operand", what=self._hop(shown), source=source, value=to))
        last = steps[-1].tensor if steps else tensor
        if len(links) > MOST_LINKS:
            half, left_out = MOST_LINKS // 2, len(links) - MOST_LINKS
            gap = Link(
                dim=dim, axis=axis, kind="operand", what=formatting.counted(left_out, "more operation"), source=""
            )
            links = [*links[:half], gap, *links[-half:]]
        if end := self.end(last, axis):
            to = self._label(end.tensor, tensor)
            links.append(end.link(dim, axis, to))
        return links

    def unsharded(self, tensor: int) -> Iterator[Link]:
        name = name_of(self.graph, tensor)
        if name not in self.reasons:
            return
        is_argument = tensor in self.graph.arguments
        kind: LinkKind = "input" if is_argument else "constraint"
        for dim, reason in self.reasons[name].unsharded.items():
            if not self.graph.tensors[tensor].axes[dim]:
                what = f"{'argument' if is_argument else 'layout of'} {name}: {reason}"
                yield Link(dim=dim, axis="", kind=kind, what=what, source="")

    def steps(self, tensor: int, axis: Axis) -> Iterator[PropagationStep]:
        """Yields the steps that brought the axis, the last one first."""
        before, seen = LATE + 1, {tensor}
        while (step := self._step(tensor, axis, before)) and step.tensor not in seen:
            yield step
            tensor, before = step.tensor, step.number
            seen.add(tensor)

    def _step(self, tensor: int, axis: Axis, before: int) -> PropagationStep | None:
        """The step that brought the axis, before another one. Layouts in the types of values only go forward, from
        operands to results, which the propagation does not record."""
        found = self.graph.tensors[tensor]
        if self.graph.is_typed and (step := self._forward(found, axis)):
            return step
        if axis in found.given:
            return None
        known = [step for step in found.steps.get(axis, ()) if step.number < before]
        return min(known, key=lambda step: step.number, default=None) or self._returned(found, axis)

    def _returned(self, result: Tensor, axis: Axis) -> PropagationStep | None:
        """The step from what the program returns to its result, unless another layout was given for that."""
        if result.operation is None or self.graph.operations[result.operation].name != RETURN:
            return None
        (source,) = result.joined
        has = self.graph.tensors[source].dim_of(axis) == result.dim_of(axis)
        return PropagationStep(LATE, result.operation, source, "operand-0", "result-0") if has else None

    def _forward(self, tensor: Tensor, axis: Axis) -> PropagationStep | None:
        """The step from an operand that has the axis, in a program whose values have layouts in their types."""
        graph, dim = self.graph, tensor.dim_of(axis)
        if tensor.joined:
            found = next((each for each in tensor.joined if graph.tensors[each].dim_of(axis) == dim), None)
            role = f"operand-{tensor.joined.index(found)}" if found is not None else ""
            return found if found is None else PropagationStep(LATE, tensor.operation or 0, found, role, "result-0")
        if tensor.operation is None or dim is None:
            return None
        operation = graph.operations[tensor.operation]
        if operation.name == TYPED:
            return self._before_type(operation.operands[0], axis)
        if operation.name == ASKS or operation.rule is None:
            return None
        factors = set(operation.rule.results[tensor.result][dim])
        for position, (operand, its) in enumerate(zip(operation.operands, operation.rule.operands, strict=False)):
            there = graph.tensors[operand].dim_of(axis)
            if there is not None and factors & set(its[there]):
                return PropagationStep(LATE, tensor.operation, operand, f"operand-{position}", "result-0")
        return None

    def _before_type(self, tensor: int, axis: Axis) -> PropagationStep | None:
        found = self.graph.tensors[tensor]
        if found.operation is not None and self.graph.operations[found.operation].name != SHARD_MAP:
            return self._forward(found, axis)
        has = found.dim_of(axis) is not None
        return PropagationStep(LATE, found.operation or 0, tensor, "operand-0", "result-0") if has else None

    def end(self, tensor: int, axis: Axis) -> End | None:
        """Returns who asked for the axis on a tensor that did not get it from another; None if unknown."""
        graph, asked = self.graph, self.graph.tensors[tensor].asked.get(axis, "")
        if axis in graph.tensors[tensor].given:
            asked = f"input: {graph.arguments.index(tensor)}" if tensor in graph.arguments else "self"
        if asked == "self":
            index = graph.tensors[tensor].operation
            inside = index is not None and tensor not in graph.operations[index].results
            return self._operation(index, axis, "in_specs" if inside else "out_specs", tensor)
        found = ORIGIN.match(asked)
        if not found:
            return None
        kind, index = found[1], int(found[2] or 0)
        if kind == "input":
            return self._argument(graph.arguments[index], axis)
        if kind == "output":
            return self._result(index)
        name = kind.removesuffix("_input").removesuffix("_output")
        specs = "in_specs" if kind.endswith("_input") else "out_specs"
        return self._operation(graph.origins.get(name), axis, specs)

    def unreduced(self, tensor: int) -> End | None:
        """Returns who left a sum over a mesh axis to be taken later; None if unknown."""
        graph, seen = self.graph, set[int]()
        while tensor not in seen:
            seen.add(tensor)
            if (index := graph.tensors[tensor].operation) is None:
                return self._argument(tensor, "")
            before = [each for each in graph.operations[index].operands if graph.tensors[each].unreduced]
            tensor = before[0] if before else tensor
        users = (graph.operations[index] for index, _ in graph.tensors[tensor].uses)
        typed = next((user for user in users if user.name == TYPED), None)
        return self._out_sharding(typed) if typed else None

    def why(self, tensor: int, axis: Axis) -> str:
        """Returns in words who asked for the axis first; empty if unknown."""
        *_, last = [tensor, *(step.tensor for step in self.steps(tensor, axis))]
        end = self.end(last, axis)
        return end.words if end else ""

    def _argument(self, tensor: int, axis: Axis) -> End:
        name = name_of(self.graph, tensor)
        return End("input", f"argument {name}{self._reason(name, axis)}", "", tensor)

    def _result(self, index: int) -> End:
        asked = f"the sharding asked for {self.graph.result_names[index]} by out_shardings"
        return End("constraint", asked, "", self.graph.results[index])

    def _operation(self, index: int | None, axis: Axis, specs: str, tensor: int | None = None) -> End | None:
        if index is None:
            return None
        operation = self.graph.operations[index]
        source, caller = operation.place.source, operation.place.caller
        if operation.name == RETURN and tensor is not None:
            return self._result(self.graph.results.index(tensor))
        if operation.name == SHARD_MAP:
            return End("shard_map", f"{specs} of the shard_map", source, caller=caller)
        if operation.name == TYPED:
            return self._out_sharding(operation)
        result = self.graph.tensors[operation.results[0]]
        name = result.names[0] if result.names else ""
        of = f" of {name}" if name else ""
        reason = self._reason(name, axis) or self._reason_at(source, layout(result), axis)
        what = f"constraint{of} to {layout(result)}{reason}"
        return End("constraint", what, source, operation.results[0], caller)

    def _out_sharding(self, typed: Operation) -> End:
        """The layout that an operation gives its result, whose operands do not have it."""
        made = self.graph.tensors[typed.operands[0]].operation
        what = word(self.graph.operations[made]) if made is not None else "value"
        asked = f"out_sharding of the {what}: {layout(self.graph.tensors[typed.results[0]])}"
        return End("out_sharding", asked, typed.place.source, typed.results[0], typed.place.caller)

    def _reason(self, name: str, axis: Axis) -> str:
        reason = self.reasons[name].axes.get(axis) if name in self.reasons else None
        return f": {reason}" if reason else ""

    def _reason_at(self, source: str, spec: str, axis: Axis) -> str:
        """The reason in common to all named values that a line constrains alike: a gradient has none of its own."""
        reasons = {self._reason(name, axis) for name in self._constrained.get((source, spec), ())}
        return reasons.pop() if len(reasons) == 1 else ""

    @cached_property
    def _constrained(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for operation in self.graph.operations:
            if operation.name == ASKS:
                result = self.graph.tensors[operation.results[0]]
                found.setdefault((operation.place.source, layout(result)), []).extend(result.names[:1])
        return found

    def _label(self, tensor: int | None, begin: int) -> str:
        label = "" if tensor is None else self.labels.get(tensor, "")
        return "" if label == self.labels.get(begin) else label

    def _weight(self, step: PropagationStep) -> int:
        operation = self.graph.operations[step.operation]
        if self.graph.tensors[step.tensor].names:
            return 3
        return 2 if word(operation) in NOTABLE else int(operation.name not in TRIVIAL)

    def _hop(self, step: PropagationStep) -> str:
        operation = self.graph.operations[step.operation]
        names = self.graph.tensors[step.tensor].names
        named = f", {names[0]}" if names and names[0] else ""
        return f"{_passed(word(operation), step.role, step.target)}{named}"


def _passed(what: str, role: str, target: str) -> str:
    """The relation of a tensor to the one that it passed an axis to: `operand 1 of the product`."""
    kind, _, index = role.partition("-")
    takes = target.startswith("operand")
    if what == "return":
        return "what is returned" if kind == "operand" else "the result of the program"
    if what == "loop":
        inner = ("the loop's initial value", "the value after an iteration of the loop")
        return inner[min(int(index), 1)] if kind == "operand" else "the loop that carries it"
    if what == "cond":
        return f"branch {index} of the cond" if kind == "operand" else "the cond that returns it"
    if kind == "operand":
        return f"operand {index} of the {what}{' that takes both' if takes else ''}"
    return f"the result of the {what} that takes it" if takes else f"another result of the {what}"
