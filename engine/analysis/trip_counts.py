"""How often the loops of a compiled module run: what the compiler noted, or what counter, step and bound say."""

import itertools
import operator
import re
from collections.abc import Callable

from .hlo import Computation, Instruction, Module, number

CALLS = r"\bcalls=%?([\w.\-]+)"
BODY = r"\bbody=%?([\w.\-]+)"
CONDITION = r"\bcondition=%?([\w.\-]+)"
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
LITERAL = re.compile(r"\{?(-?\d{1,20})\}?\)")
INDEX = re.compile(r"(\d{1,9})\)")
MOST_STEPS = 3
"""Steps of a loop that are followed to see that its counter moves evenly."""
MOST_SHARED = 100_000
"""Instructions that loops may look at beyond those of their own."""
MOST_NESTED = 50
"""Fusions within fusions that are looked into."""
LARGEST = 2**64
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}
OPERANDS = {"copy": 1, "bitcast": 1, "convert": 1, "reshape": 1} | dict.fromkeys(ARITHMETIC, 2)
"""How many the number of an instruction follows from."""

Given = Callable[[int], int | None]
"""From an index to the number there."""


def nothing(_: int) -> None:
    """Nothing is given."""


class Trips:
    """The loops of one module. They look at each instruction once a step at most, unless they share computations: where
    they do that on and on, the loops that are left have no known count."""

    def __init__(self, module: Module) -> None:
        self.computations = module.computations
        self.left = MOST_SHARED + (MOST_STEPS + 1) * sum(
            len(found.instructions) for found in module.computations.values()
        )
        """Instructions that may still be looked at."""
        self.nested = 0
        self._outside: dict[str, Scope] = {}

    def count(self, caller: Computation, loop: Instruction) -> int | None:
        """Of a `while` in `caller`; None where that cannot be known."""
        noted = KNOWN_TRIPS.search(loop.rest)
        if noted:
            return number(noted.group(1))
        body, condition = self._called(loop, BODY), self._called(loop, CONDITION)
        start = caller.instructions.get(loop.operand)
        if not (body and body.root and body.root.opcode == "tuple" and condition and start and start.opcode == "tuple"):
            return None
        outside = self._outside.setdefault(caller.name, Scope(self, caller))
        states = [_elements(outside, start)]
        for _ in range(MOST_STEPS):
            states.append(_elements(Scope(self, body, states[-1]), body.root))
        return self._trips(condition, states)

    def fused(self, fusion: Instruction) -> Computation | None:
        return self._called(fusion, CALLS)

    def _called(self, instruction: Instruction, role: str) -> Computation | None:
        return self.computations.get(instruction.attribute(role) or "")

    def _trips(self, condition: Computation, states: list[Given]) -> int | None:
        """The smallest n for which the compared numbers, which move evenly, end the loop."""
        root = condition.root
        around = root if root and root.opcode == "fusion" else None
        inside = self.fused(around) if around else condition
        compare = inside.root if inside else None
        if not inside or not compare or compare.opcode != "compare":
            return None
        sides: list[list[int | None]] = [[], []]
        for state in states:
            given = _elements(Scope(self, condition, state), around) if around else nothing
            scope = Scope(self, inside, state, given)
            for side, operand in zip(sides, (*compare.operands[:2], "", ""), strict=False):
                side.append(scope.value(operand))
        return _smallest(compare.attribute(r"direction=(\w+)"), *map(_even, sides))


class Scope:
    """What the instructions of a computation compute, where that follows from constants and from what is given to it:
    the elements of a loop's tuple, the parameters of a fusion."""

    def __init__(
        self, trips: Trips, computation: Computation, element: Given = nothing, parameter: Given = nothing
    ) -> None:
        self.trips, self.instructions = trips, computation.instructions
        self.element, self.parameter = element, parameter
        self._known: dict[str, int | None] = {}

    def value(self, name: str) -> int | None:
        """Operands first, by a list of our own: chains of instructions may be longer than Python's stack."""
        waiting: list[tuple[str, list[str]]] = [(name, [])]
        while waiting:
            at, operands = waiting.pop()
            if operands:
                self._known[at] = self._combined(self.instructions[at].opcode, operands)
            elif at not in self._known and self.trips.left and (instruction := self.instructions.get(at)):
                self.trips.left -= 1
                self._known[at] = None  # a cycle, which no valid module has, ends here
                if operands := instruction.operands[: OPERANDS.get(instruction.opcode, 0)]:
                    waiting += [(at, operands), *((operand, []) for operand in operands)]
                else:
                    self._known[at] = self._given(instruction)
        return self._known.get(name)

    def _combined(self, opcode: str, operands: list[str]) -> int | None:
        known = [number for name in operands if (number := self._known.get(name)) is not None]
        if len(known) != OPERANDS[opcode]:
            return None
        number = ARITHMETIC[opcode](*known) if opcode in ARITHMETIC else known[0]
        return number if abs(number) < LARGEST else None

    def _given(self, instruction: Instruction) -> int | None:
        match instruction.opcode:
            case "constant":
                found = LITERAL.match(instruction.rest)
                return int(found.group(1)) if found else None
            case "parameter":
                found = INDEX.match(instruction.rest)
                return self.parameter(int(found.group(1))) if found else None
            case "get-tuple-element":
                source, index = self.instructions.get(instruction.operand), instruction.attribute(r"index=(\d+)")
                return self.element(number(index)) if source and source.opcode == "parameter" and index else None
            case "fusion":
                return self._fused(instruction)
            case _:
                return None

    def _fused(self, fusion: Instruction) -> int | None:
        called = self.trips.fused(fusion)
        if not called or not called.root or self.trips.nested == MOST_NESTED:
            return None
        self.trips.nested += 1
        result = Scope(self.trips, called, parameter=_elements(self, fusion)).value(called.root.name)
        self.trips.nested -= 1
        return result


def _elements(scope: Scope, instruction: Instruction) -> Given:
    """The operands of a tuple or a fusion by index, each computed when it is asked for."""
    operands = instruction.operands
    return lambda index: scope.value(operands[index]) if index < len(operands) else None


def _even(values: list[int | None]) -> tuple[int, int] | None:
    """(first, step) of numbers that move evenly."""
    known = [value for value in values if value is not None]
    steps = {later - earlier for earlier, later in itertools.pairwise(known)}
    return (known[0], steps.pop()) if len(known) == len(values) and len(steps) == 1 else None


def _smallest(direction: str | None, left: tuple[int, int] | None, right: tuple[int, int] | None) -> int | None:
    """The n after which `left` and `right`, both (first, step), no longer compare so."""
    if left is None or right is None:
        return None
    gap, step = right[0] - left[0], left[1] - right[1]
    if direction in ("GT", "GE"):
        gap, step = -gap, -step
    if direction in ("LE", "GE"):
        gap += 1
    if direction == "NE":
        return gap // step if step and gap % step == 0 and gap // step >= 0 else None
    if direction not in ("LT", "GT", "LE", "GE"):
        return None
    return 0 if gap <= 0 else -(-gap // step) if step > 0 else None
