"""The chain of origins of a mesh axis on a tensor: each tensor that it came from, and who asked for it first."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from .explanation import Link, LinkKind
from .graph import NOTABLE, TRIVIAL, Axis, Graph, PropagationStep, at, layout, name_of, word

MOST_LINKS = 24
"""Links of a chain: the middle of a longer one is left out."""
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


@dataclass(frozen=True)
class Chains:
    graph: Graph
    reasons: Reasons
    labels: Mapping[int, str]
    """`Link.value` of each explained tensor."""

    def links(self, tensor: int, axis: Axis) -> list[Link]:
        """Returns the chain of a mesh axis that splits a tensor."""
        dim = self.graph.tensors[tensor].dim_of(axis) or 0
        links, last = [], tensor
        steps = list(self.steps(tensor, axis))
        for source, group in groupby(steps, lambda step: self.graph.operations[step.operation].place.source):
            shown = max(group, key=self._weight)
            if self._weight(shown):
                to = self._label(shown.tensor, tensor)
                links.append(Link(dim=dim, axis=axis, kind="operand", what=self._hop(shown), source=source, value=to))
        last = steps[-1].tensor if steps else tensor
        if len(links) > MOST_LINKS:
            half, left_out = MOST_LINKS // 2, len(links) - MOST_LINKS
            gap = Link(dim=dim, axis=axis, kind="operand", what=f"{left_out} more operations", source="")
            links = [*links[:half], gap, *links[-half:]]
        if end := self.end(last, axis):
            to = self._label(end.tensor, tensor)
            links.append(Link(dim=dim, axis=axis, kind=end.kind, what=end.what, source=end.source, value=to))
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
        before = None
        while True:
            known = self.graph.tensors[tensor].steps.get(axis, ())
            step = min(known, key=lambda step: step.number, default=None)
            if step is None or (before is not None and step.number >= before):
                return
            yield step
            tensor, before = step.tensor, step.number

    def end(self, tensor: int, axis: Axis) -> End | None:
        """Returns who asked for the axis on a tensor that did not get it from another; None if unknown."""
        graph, asked = self.graph, self.graph.tensors[tensor].asked.get(axis, "")
        if tensor in graph.arguments:
            return self._argument(tensor, axis)
        if asked == "self":
            index = graph.tensors[tensor].operation
            inside = index is not None and tensor not in graph.operations[index].results
            return self._operation(index, axis, "in_specs" if inside else "out_specs")
        found = ORIGIN.match(asked)
        if not found:
            return None
        kind, index = found[1], int(found[2] or 0)
        if kind == "input":
            return self._argument(graph.arguments[index], axis)
        if kind == "output":
            return End("constraint", f"the sharding asked for {graph.result_names[index]}", "")
        name = kind.removesuffix("_input").removesuffix("_output")
        specs = "in_specs" if kind.endswith("_input") else "out_specs"
        return self._operation(graph.origins.get(name), axis, specs)

    def why(self, tensor: int, axis: Axis) -> str:
        """Returns in words who asked for the axis first; empty if unknown."""
        *_, last = [tensor, *(step.tensor for step in self.steps(tensor, axis))]
        end = self.end(last, axis)
        return f"{end.what}{at(end.source)}" if end else ""

    def _argument(self, tensor: int, axis: Axis) -> End:
        name = name_of(self.graph, tensor)
        return End("input", f"argument {name}{self._reason(name, axis)}", "", tensor)

    def _operation(self, index: int | None, axis: Axis, specs: str) -> End | None:
        if index is None:
            return None
        operation = self.graph.operations[index]
        source = operation.place.source
        if operation.name == "sdy.manual_computation":
            return End("shard_map", f"{specs} of the shard_map", source)
        result = self.graph.tensors[operation.results[0]]
        name = result.names[0] if result.names else ""
        of = f" of {name}" if name else ""
        reason = self._reason(name, axis) or self._reason_at(source, layout(result), axis)
        return End("constraint", f"constraint{of} to {layout(result)}{reason}", source, operation.results[0])

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
            if operation.name == "sdy.sharding_constraint":
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
    if what == "loop":
        inner = ("the loop's initial value", "the value after an iteration of the loop")
        return inner[min(int(index), 1)] if kind == "operand" else "the loop that carries it"
    if what == "cond":
        return f"branch {index} of the cond" if kind == "operand" else "the cond that returns it"
    if kind == "operand":
        return f"operand {index} of the {what}{' that takes both' if takes else ''}"
    return f"the result of the {what} that takes it" if takes else f"another result of the {what}"
