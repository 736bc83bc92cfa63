"""How often each computation of a compiled module runs: from its call sites, and from the trip counts of loops, which
the compiler notes, or which follow from counter, step and bound."""

import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..base.call_graph import walk_of
from .module import Computation, Instruction, Module, number

BODY = r"\bbody=%?([\w.\-]+)"
CONDITION = r"\bcondition=%?([\w.\-]+)"
APPLIED = r"\bto_apply=%?([\w.\-]+)"
CONDITIONAL = re.compile(r"(?:true|false)_computation=(%?[\w.\-]+)|branch_computations=\{([^}]*)\}")
CONTAINERS = {"call": (APPLIED,), "while": (CONDITION, BODY)}
"""Opcodes that run other computations, but for `conditional`, to the attributes that name these."""
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
LITERAL = re.compile(r"\{?(-?\d{1,20})\}?\)")
INDEX = re.compile(r"(\d{1,9})\)")
MAX_STEPS = 3
"""Iterations of a loop to evaluate, to see that its counter advances evenly."""
MAX_SHARED = 100_000
"""Instructions that loops may evaluate beyond one visit each per iteration."""
MAX_NESTED = 50
"""Depth of nested fusions to evaluate."""
MAX_DEPTH = 100
"""Loops and calls within each other: a valid program has a few."""
MAX_VISITS, MAX_REPEATED = 4, 10_000
"""Visits of a walk for each instruction of the text, and besides."""
MAX_VALUE = 2**64
"""Larger values are unknown."""
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}
OPERANDS = {"copy": 1, "bitcast": 1, "convert": 1, "reshape": 1} | dict.fromkeys(ARITHMETIC, 2)
"""Opcode to the number of operands that its value follows from."""

ROLES = (" calls=", " to_apply=", " body=", " condition=", " true_computation=", " false_computation=")
BRANCHES = " branch_computations={"
NAME = re.compile(r"%?([\w.\-]+)")
MAX_RUNS = 2**63
"""No program runs anything this often."""

Given = Callable[[int], int | None]
"""The known values of a tuple's elements or a fusion's parameters: index to value, None if unknown."""


def nothing(_: int) -> None:
    """Knows no value."""


class Trips:
    """Counts the trips of loops in one module, in time linear in its size.

    A loop visits each instruction at most once per iteration. Loops that share computations draw on `MAX_SHARED` more
    visits; once these are used up, the trip counts of the other loops are unknown.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.budget = MAX_SHARED + (MAX_STEPS + 1) * sum(
            len(found.instructions) for found in module.computations.values()
        )
        """Instructions that may still be visited."""
        self.nested = 0
        """Depth of the fusion that is being evaluated."""
        self._outside: dict[str, Scope] = {}

    def count(self, caller: Computation, loop: Instruction) -> int | None:
        """Returns the trip count of a `while` in `caller`; None if it is unknown."""
        noted = KNOWN_TRIPS.search(loop.rest)
        if noted:
            return number(noted.group(1))
        body, condition = self._called(loop, BODY), self._called(loop, CONDITION)
        start = caller.instructions.get(loop.operand)
        if not (body and body.root and body.root.opcode == "tuple" and condition and start and start.opcode == "tuple"):
            return None
        outside = self._outside.setdefault(caller.name, Scope(self, caller))
        states = [_elements(outside, start)]
        for _ in range(MAX_STEPS):
            states.append(_elements(Scope(self, body, states[-1]), body.root))
        return self._trips(condition, states)

    def _called(self, instruction: Instruction, role: str) -> Computation | None:
        return self.module.computations.get(instruction.attribute(role) or "")

    def _trips(self, condition: Computation, states: list[Given]) -> int | None:
        """The smallest n for which the condition is false, if both compared values advance evenly."""
        root = condition.root
        around = root if root and root.opcode == "fusion" else None
        inside = self.module.called(around) if around else condition
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
    """Evaluates instructions of one computation, as far as they follow from constants and known inputs.

    `element`: values of the tuple that a loop passes. `parameter`: values of a fusion's parameters.
    """

    def __init__(
        self, trips: Trips, computation: Computation, element: Given = nothing, parameter: Given = nothing
    ) -> None:
        self.trips, self.instructions = trips, computation.instructions
        self.element, self.parameter = element, parameter
        self._known: dict[str, int | None] = {}

    def value(self, name: str) -> int | None:
        """Returns an instruction's value; None if unknown. Not recursive: chains may be longer than Python's stack."""
        waiting: list[tuple[str, list[str]]] = [(name, [])]
        while waiting:
            at, operands = waiting.pop()
            if operands:
                self._known[at] = self._combined(self.instructions[at].opcode, operands)
            elif at not in self._known and self.trips.budget and (instruction := self.instructions.get(at)):
                self.trips.budget -= 1
                self._known[at] = None  # ends a cycle, which no valid module has
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
        return number if abs(number) < MAX_VALUE else None

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
        called = self.trips.module.called(fusion)
        if not called or not called.root or self.trips.nested == MAX_NESTED:
            return None
        self.trips.nested += 1
        result = Scope(self.trips, called, parameter=_elements(self, fusion)).value(called.root.name)
        self.trips.nested -= 1
        return result


def _elements(scope: Scope, instruction: Instruction) -> Given:
    """The values of a tuple's or fusion's operands by index, computed on demand."""
    operands = instruction.operands
    return lambda index: scope.value(operands[index]) if index < len(operands) else None


def _even(values: list[int | None]) -> tuple[int, int] | None:
    """(first, step) of values that advance evenly; None if they do not, or if one is unknown."""
    known = [value for value in values if value is not None]
    steps = {later - earlier for earlier, later in itertools.pairwise(known)}
    return (known[0], steps.pop()) if len(known) == len(values) and len(steps) == 1 else None


def _smallest(direction: str | None, left: tuple[int, int] | None, right: tuple[int, int] | None) -> int | None:
    """The smallest n at which `left` and `right`, both (first, step), no longer compare so; None if there is none."""
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


def callees(instruction: Instruction) -> list[str]:
    """Returns the names of the computations that a call, a loop or a conditional runs."""
    if instruction.opcode == "conditional":
        listed = CONDITIONAL.findall(instruction.rest)
        return [name for one, several in listed for name in NAME.findall(one or several)]
    roles = CONTAINERS.get(instruction.opcode, ())
    return [name for role in roles if (name := instruction.attribute(role))]


def is_walkable(module: Module) -> bool:
    """Returns whether a walk through a module that enters what its instructions run takes time linear in its text."""
    found = module.computations
    calls = {
        name: [callee for each in where.instructions.values() for callee in callees(each) if callee in found]
        for name, where in found.items()
    }
    sizes = {name: len(where.instructions) for name, where in found.items()}
    walk = walk_of(module.entry, sizes, calls)
    return walk.depth <= MAX_DEPTH and walk.visits <= MAX_REPEATED + MAX_VISITS * sum(sizes.values())


class Call(NamedTuple):
    """A call of one computation by another."""

    callee: str
    """The computation that is called."""
    times: int | None
    """Calls per run of the caller; None if unknown."""


def runs(module: Module) -> dict[str, int | None]:
    """Returns how often each computation runs when the module runs once; None if that depends on data or a branch.

    A computation is counted once all its callers are. One that calls itself, which no valid module has, is None.
    """
    calls = _calls_of(module)
    uncounted = Counter(call.callee for made in calls.values() for call in made)
    counts: dict[str, int | None] = {name: int(name == module.entry) for name in module.computations}
    counted = [name for name in module.computations if not uncounted[name]]
    for caller in counted:
        for callee, times in calls.get(caller, ()):
            counts[callee] = _sum(counts[callee], _times(counts[caller], times))
            uncounted[callee] -= 1
            if not uncounted[callee]:
                counted.append(callee)
    return counts | dict.fromkeys(+uncounted)


def _calls_of(module: Module) -> dict[str, list[Call]]:
    """The calls by name of the caller."""
    trips = Trips(module)
    calls: dict[str, list[Call]] = {}
    for computation, instruction in module.instructions():
        for call in _calls(trips, computation, instruction):
            if call.callee in module.computations and call.callee != module.entry:
                calls.setdefault(computation.name, []).append(call)
    return calls


def _calls(trips: Trips, caller: Computation, instruction: Instruction) -> Iterator[Call]:
    text, opcode = instruction.rest, instruction.opcode
    if opcode in ("async-update", "async-done"):
        return
    roles = [role for role in ROLES if role in text]
    each = trips.count(caller, instruction) if roles and opcode == "while" else 1
    for role in roles:
        times = None if opcode == "conditional" else each
        if role == " condition=" and times is not None:
            times += 1
        for part in text.split(role)[1:]:
            if found := NAME.match(part):
                yield Call(found[1], times)
    for part in text.split(BRANCHES)[1:]:
        for callee in part.partition("}")[0].split(","):
            yield Call(callee.strip().lstrip("%"), None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None or one + other >= MAX_RUNS else one + other


def _times(runs: int | None, times: int | None) -> int | None:
    if runs == 0 or times == 0:
        return 0
    return None if runs is None or times is None or runs * times >= MAX_RUNS else runs * times
