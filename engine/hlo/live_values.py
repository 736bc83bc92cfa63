"""The values of a scheduled program: from when to when each is live, and which of them share memory.

XLA prints a module in the order in which it runs, but not where each value lies, and only its CPU compiler returns the
buffer assignment. So this follows the assignment's main rules: what only renames values needs no memory (tuples,
bitcasts), a loop updates its state in place, an elementwise result takes the memory of an operand that nothing reads
later, and donated arguments hold the outputs that they are donated to.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from .array_types import arrays, elements, leaves, memory_space
from .execution_counts import callees
from .module import APPLIED, BODY, CONDITION, Computation, Instruction, Module, number, numbers

OUTPUT_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
"""An output, and the argument or operand whose memory it takes."""
RENAMES = ("bitcast", "tuple", "opt-barrier", "after-all", "call")
"""Opcodes whose result is the memory of their operands."""
UPDATES = ("dynamic-update-slice", "scatter")
"""Opcodes that change their first operand in place."""
ELEMENTWISE = re.compile(
    "abs|add|and|atan2|cbrt|ceil|clamp|compare|convert|copy|cosine|divide|exponential(-minus-one)?|floor|is-finite|log|"
    "log-plus-one|logistic|maximum|minimum|multiply|negate|not|or|power|remainder|round-nearest-(afz|even)|rsqrt|select|"
    "shift-(left|right-arithmetic|right-logical)|sign|sine|sqrt|subtract|tan|tanh|xor"
)
"""Opcodes whose result at an index depends on nothing but the operands at that index."""
INERT = ("parameter", "constant", "broadcast", "iota", "tuple", "bitcast", "reduce")
"""Other opcodes in a fusion that does not read an element after it has written it. The GPU compiler computes reductions
first."""
LOOPS = re.compile(r" kind=k(Loop|Input)")
"""Fusions that are computed element by element; of the second kind, which ends in reductions, only on GPU."""


@dataclass(eq=False)
class Value:
    """An array that one instruction computes, or one element of the tuple that it does."""

    array: str
    """Its type, with the layout."""
    where: Computation
    """The computation that it is in."""
    instruction: Instruction
    """The instruction that computes it."""
    begin: int
    """When its memory is taken. Times count the instructions of the schedule, each loop body once."""
    end: int
    """When the last instruction that reads it has begun."""
    argument: int | None = None
    """Number of the program's argument that it is."""
    shares: "Value | None" = None
    """Another value that has the same memory."""

    @property
    def owner(self) -> "Value":
        """The value that stands for all that have the same memory."""
        value = self
        while value.shares is not None:
            value = value.shares
        if value is not self:
            self.shares = value
        return value


Values = list[Value]
Size = tuple[int, int, int]
"""Elements and bits of an array, and its memory space: a result takes the memory of an operand of the same size."""


class Schedule:
    """Runs through a scheduled module once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.values: Values = []
        self._reusable: list[tuple[Values, Values]] = []
        """Results, and operands whose memory they can take if nothing reads these later."""
        self.now = 0
        """Instructions that have run: in the end, the length of the schedule."""
        entry = module.computations[module.entry]
        self.outputs = self._run(entry, None)
        for value in self.outputs:
            value.end = self.now
        self._donate()
        self._reuse()

    def _donate(self) -> None:
        given = {value.argument: value for value in self.values if value.argument is not None}
        for at, argument in aliases(self.module):
            if at < len(self.outputs) and (value := given.get(argument)):
                _share(self.outputs[at], value)

    def _reuse(self) -> None:
        """Lets results take the memory of an operand that they are the last to read."""
        spans: dict[Value, tuple[int, int]] = {}
        for value in self.values:
            begin, end = spans.get(value.owner, (value.begin, value.end))
            is_argument = value.argument is not None
            spans[value.owner] = min(begin, value.begin), self.now + 1 if is_argument else max(end, value.end)
        for results, operands in self._reusable:
            now, free = results[0].begin, dict[Size, list[Value]]()
            for value, array in {operand.owner: operand.array for operand in operands}.items():
                if spans[value][0] < spans[value][1] == now:
                    free.setdefault(_size(array), []).append(value)
            for result in results:
                if spans[result.owner][0] == now and (unused := free.get(_size(result.array))):
                    value = unused.pop()
                    spans[value] = spans[value][0], spans[result.owner][1]
                    _share(result, value)

    def _run(self, where: Computation, given: Sequence[Values] | None) -> Values:
        """Runs a computation and returns its result. `given`: the values of its parameters; None for the entry's."""
        results: dict[str, Values] = {}
        for each in where.instructions.values():
            operands = [results.get(name, []) for name in each.operands] if each.opcode != "parameter" else []
            results[each.name] = self._result(where, each, operands, given)
        return results[where.roots[-1]] if where.roots else []

    def _result(
        self, where: Computation, each: Instruction, operands: list[Values], given: Sequence[Values] | None
    ) -> Values:
        flat = [value for values in operands for value in values]
        match each.opcode:
            case "parameter":
                if given is not None:
                    return given[each.index] if each.index < len(given) else []
                return self._new(where, each, argument=each.index)
            case "get-tuple-element":
                return _element(where, each, flat)
            case "call" if called := self.module.computations.get(each.attribute(APPLIED) or ""):
                return self._run(called, operands)
            case "while":
                return self._loop(where, each, flat)
            case "conditional":
                return self._branch(where, each, operands)
            case opcode if opcode in RENAMES:
                return flat
            case opcode if opcode.endswith(("-done", "-update")):
                return self._finished(where, each, flat)
            case _:
                return self._computed(where, each, operands, flat)

    def _loop(self, where: Computation, each: Instruction, state: Values) -> Values:
        self._read(state)
        inside = [self._value(value.array, where, each) for value in state]
        self._keep(inside, state)
        for role in (CONDITION, BODY):
            if called := self.module.computations.get(each.attribute(role) or ""):
                after = self._run(called, [inside])
                if role == BODY:
                    self._keep(after, inside)
        result = [self._value(value.array, where, each) for value in state]
        self._keep(result, inside)
        return result

    def _branch(self, where: Computation, each: Instruction, operands: list[Values]) -> Values:
        called = [self.module.computations.get(name) for name in callees(each)]
        results = [self._run(found, [given]) for found, given in zip(called, operands[1:], strict=False) if found]
        result = self._new(where, each)
        for values in results:
            self._keep(values, result)
        return result

    def _finished(self, where: Computation, each: Instruction, started: Values) -> Values:
        """The results of what another instruction started: its values of the same types, the last ones first."""
        self._read(started)
        if each.opcode == "copy-done":
            return started[:1]
        wanted = leaves(each.type)
        found = [value for value in started if value.array in wanted][-len(wanted) :]
        return found if len(found) == len(wanted) else self._new(where, each)

    def _computed(self, where: Computation, each: Instruction, operands: list[Values], flat: Values) -> Values:
        self._read(flat)
        result = self._new(where, each)
        for at, value in self._in_place(each, operands, flat, len(result)):
            _share(result[at], value)
        if result and self._may_reuse(each):
            self._reusable.append((result, flat))
        self.now += 1
        return result

    def _in_place(
        self, each: Instruction, operands: list[Values], flat: Values, count: int
    ) -> Iterator[tuple[int, Value]]:
        """The results that have the memory of an operand."""
        if (each.opcode.endswith("-start") and each.opcode != "all-reduce-start") or each.opcode == "send":
            first = 1 if each.opcode == "copy-start" else 0  # the operands are the first elements of other results
            yield from ((first + at, value) for at, value in enumerate(flat) if first + at < count)
        if " output_to_operand_aliasing={" in each.rest:
            text = each.rest.partition(" output_to_operand_aliasing={")[2].partition("})}")[0] + "})"
            for index, operand in OUTPUT_ALIAS.findall(text):
                at = numbers(index)[0] if index.strip() else 0
                if at < count and number(operand) < len(operands) and operands[number(operand)]:
                    yield at, operands[number(operand)][0]

    def _may_reuse(self, each: Instruction) -> bool:
        """Whether an instruction can write its results over operands that it is the last to read."""
        fused = self.module.called(each) if each.opcode == "fusion" else None
        opcodes = {inside.opcode for inside in fused.instructions.values()} if fused else {each.opcode}
        if not opcodes.isdisjoint(UPDATES):
            return True
        is_by_element = LOOPS.search(each.rest) is not None if fused else True
        return is_by_element and all(opcode in INERT or ELEMENTWISE.fullmatch(opcode) for opcode in opcodes)

    def _new(self, where: Computation, each: Instruction, argument: int | None = None) -> Values:
        return [self._value(array, where, each, argument) for array in leaves(each.type)]

    def _value(self, array: str, where: Computation, each: Instruction, argument: int | None = None) -> Value:
        value = Value(array, where, each, self.now, self.now, argument)
        self.values.append(value)
        return value

    def _read(self, values: Values) -> None:
        for value in values:
            value.end = max(value.end, self.now)

    def _keep(self, values: Values, state: Values) -> None:
        self._read(values)
        for value, before in zip(values, state, strict=False):
            _share(value, before)


def aliases(module: Module) -> Iterator[tuple[int, int]]:
    """Yields the outputs that take the memory of donated arguments, each with its argument."""
    for index, argument in OUTPUT_ALIAS.findall(module.aliases):
        yield numbers(index)[0] if index.strip() else 0, number(argument)


@lru_cache(4096)
def _size(array: str) -> Size:
    found = arrays(array)
    return prod(found.shapes[0]) if found.shapes else 0, found.bits, memory_space(array)


def _share(value: Value, other: Value) -> None:
    if value.owner is not other.owner:
        value.owner.shares = other.owner


def _element(where: Computation, each: Instruction, flat: Values) -> Values:
    operand = where.instructions.get(each.operand)
    counts = elements(operand.type) if operand else ()
    return flat[sum(counts[: each.index]) : sum(counts[: each.index + 1])]
