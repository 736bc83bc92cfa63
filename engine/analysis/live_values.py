"""The values of a scheduled program: from when to when each is live, and which of them share memory.

XLA prints a module in the order in which it runs, but not where each value lies. So this follows the rules of its
buffer assignment: what only renames values needs no memory (tuples, bitcasts), a loop updates its state in place, so
does an update of a slice, and donated arguments hold the outputs that they are donated to.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from .array_memory import elements, leaves, memory_space
from .execution_counts import BRANCHES
from .hlo import Computation, Instruction, Module, arrays, number, numbers
from .in_place import elementwise, updated
from .trip_counts import BODY, CONDITION

APPLIED = r"\bto_apply=%?([\w.\-]+)"
BRANCH = re.compile(r"%?([\w.\-]+)")
OUTPUT_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
"""An output, and the argument or operand whose memory it takes."""
RENAMES = ("bitcast", "tuple", "opt-barrier", "optimization-barrier", "after-all", "call")
"""Opcodes whose result is the memory of their operands."""


@dataclass(eq=False)
class Value:
    """An array that one instruction computes, or one element of the tuple that it does."""

    array: str
    """Its type, with the layout."""
    where: Computation
    """The computation that it is in."""
    instruction: Instruction
    """What computes it."""
    begin: int
    """When its memory is taken. Times count the instructions of the schedule, those of a loop once."""
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


class Schedule:
    """Runs through a scheduled module once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.values: Values = []
        self._reusable: list[tuple[Value, Value]] = []
        """Results, and an operand whose memory each can take if nothing reads that later."""
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
        for index, argument in OUTPUT_ALIAS.findall(self.module.aliases):
            at = numbers(index)[0] if index.strip() else 0
            if at < len(self.outputs) and (value := given.get(number(argument))):
                _share(self.outputs[at], value)

    def _reuse(self) -> None:
        """Lets results take the memory of an operand that they are the last to read."""
        spans: dict[Value, tuple[int, int]] = {}
        for value in self.values:
            begin, end = spans.get(value.owner, (value.begin, value.end))
            is_argument = value.argument is not None
            spans[value.owner] = min(begin, value.begin), self.now + 1 if is_argument else max(end, value.end)
        for result, operand in self._reusable:
            one, other = result.owner, operand.owner
            if (
                _are_alike(result.array, operand.array)
                and spans[one][0] == result.begin == spans[other][1] > spans[other][0]
            ):
                _share(one, other)
                spans[other] = spans[other][0], spans[one][1]

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
                index = number((each.rest[: each.closing]).strip() or "0")
                if given is not None:
                    return given[index] if index < len(given) else []
                return self._new(where, each, argument=index)
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
        names = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", each.rest)
        listed = each.rest.partition(BRANCHES)[2].partition("}")[0]
        results: list[Values] = []
        for name, given in zip(names or BRANCH.findall(listed), operands[1:], strict=False):
            if called := self.module.computations.get(name):
                results.append(self._run(called, [given]))
                self._read(results[-1])
        result = self._new(where, each)
        for values in results:
            for one, other in zip(result, values, strict=False):
                _share(other, one)
        return result

    def _finished(self, where: Computation, each: Instruction, started: Values) -> Values:
        """The results of what another instruction started: its values of the same types, the last ones first."""
        self._read(started)
        if each.opcode == "copy-done":
            return started[:1]
        left, found = list(reversed(started)), Values()
        for array in reversed(leaves(each.type)):
            value = next((value for value in left if value.array == array), None)
            if value is None:
                return self._new(where, each)
            left.remove(value)
            found.append(value)
        return found[::-1]

    def _computed(self, where: Computation, each: Instruction, operands: list[Values], flat: Values) -> Values:
        self._read(flat)
        result = self._new(where, each)
        for at, value in self._in_place(each, operands, flat, len(result)):
            _share(result[at], value)
        for at, operand in elementwise(self.module, each):
            if at < len(result) and operand < len(operands):
                self._reusable += [(result[at], value) for value in operands[operand][:1]]
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
        for at, number_ in enumerate(updated(self.module, each)):
            if number_ is not None and number_ < len(operands) and operands[number_]:
                value = operands[number_][0]
                if memory_space(value.array) == memory_space(leaves(each.type)[at]):
                    yield at, value

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
        """What a loop's state becomes: in the same memory, until now."""
        self._read(values)
        for value, before in zip(values, state, strict=False):
            _share(value, before)


def _are_alike(one: str, other: str) -> bool:
    """Whether two arrays have as many elements, as large ones, in the same memory."""
    alike = [(prod(found.shapes[0]), found.bits) for found in (arrays(one), arrays(other)) if found.shapes]
    return len(alike) == 2 and alike[0] == alike[1] and memory_space(one) == memory_space(other)


def _share(value: Value, other: Value) -> None:
    if value.owner is not other.owner:
        value.owner.shares = other.owner


def _element(where: Computation, each: Instruction, flat: Values) -> Values:
    operand = where.instructions.get(each.operand)
    counts = elements(operand.type) if operand else ()
    index = number(each.attribute(r"\bindex=(\d+)") or "0")
    at = sum(counts[:index])
    return flat[at : at + (counts[index] if index < len(counts) else 0)]
