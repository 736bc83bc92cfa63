"""How often each computation of a compiled module runs: loops count by their trips, calls by their sites."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .hlo import Computation, Instruction, Module, closing

CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
MOST_STEPS = 3
"""Steps of a loop that are followed to see that its counter moves evenly."""


@dataclass(frozen=True)
class Call:
    """One computation runs another, `times` for each of its own runs; None where that cannot be known."""

    caller: str
    callee: str
    times: int | None


def runs(module: Module) -> dict[str, int | None]:
    """By computation, when the module runs once; None where that depends on data or on a branch."""
    callers: dict[str, list[Call]] = defaultdict(list)
    for computation, instruction in module.instructions():
        for call in _calls(module, computation, instruction):
            callers[call.callee].append(call)
    known: dict[str, int | None] = {module.entry: 1}

    def runs_of(name: str) -> int | None:
        if name not in known:
            known[name] = 0  # a cycle, which no valid module has, ends here
            counts = [_times(runs_of(call.caller), call.times) for call in callers[name]]
            known[name] = None if None in counts else sum(count for count in counts if count is not None)
        return known[name]

    return {name: runs_of(name) for name in module.computations}


def _calls(module: Module, caller: Computation, instruction: Instruction) -> Iterator[Call]:
    text = instruction.rest
    if instruction.opcode in ("async-update", "async-done") or "=" not in text:
        return
    trips = trip_count(module, caller, instruction) if instruction.opcode == "while" else 1
    for role, callee in CALLED.findall(text):
        times = trips
        if instruction.opcode == "conditional":
            times = None
        elif role == "condition" and trips is not None:
            times = trips + 1
        yield Call(caller.name, callee, times)
    for names in BRANCHES.findall(text):
        for callee in names.split(","):
            yield Call(caller.name, callee.strip().lstrip("%"), None)


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` runs its body: what the compiler noted, or else what its counter, step and bound say."""
    noted = KNOWN_TRIPS.search(loop.rest)
    if noted:
        return int(noted.group(1))
    body = module.computations.get(loop.attribute(r"body=%?([\w.\-]+)") or "")
    condition = module.computations.get(loop.attribute(r"condition=%?([\w.\-]+)") or "")
    start = caller.instructions.get(loop.operand)
    if not (body and body.root and body.root.opcode == "tuple" and condition and start and start.opcode == "tuple"):
        return None
    states = [[_integer(module, caller, operand, {}) for operand in start.operands]]
    for _ in range(MOST_STEPS):
        element = dict(enumerate(states[-1]))
        states.append([_integer(module, body, operand, element) for operand in body.root.operands])
    return _trips(module, condition, states)


def _trips(module: Module, condition: Computation, states: list[list[int | None]]) -> int | None:
    """The smallest n for which the compared numbers, which move evenly, end the loop."""
    compare = _comparison(module, condition)
    if compare is None:
        return None
    inside, instruction, outer = compare
    sides: list[list[int | None]] = [[], []]
    for state in states:
        element: dict[int, int | None] = dict(enumerate(state))
        parameters = [_integer(module, condition, name, element) for name in outer] if outer else None
        for side, operand in zip(sides, (*instruction.operands, "", ""), strict=False):
            side.append(_integer(module, inside, operand, element, parameters))
    left, right = (_even(side) for side in sides)
    if left is None or right is None:
        return None
    direction = instruction.attribute(r"direction=(\w+)")
    gap, step = right[0] - left[0], left[1] - right[1]
    if direction in ("GT", "GE"):
        gap, step = -gap, -step
    if direction in ("LE", "GE"):
        gap += 1
    if direction == "NE":
        return gap // step if step and gap % step == 0 and gap // step >= 0 else None
    if direction not in ("LT", "GT", "LE", "GE"):
        return None
    return 0 if gap <= 0 else math.ceil(gap / step) if step > 0 else None


def _comparison(module: Module, condition: Computation) -> tuple[Computation, Instruction, list[str]] | None:
    """The comparison that ends a loop, the computation it stands in, and the operands of the fusion around it."""
    root = condition.root
    if root and root.opcode == "fusion":
        fused = module.computations.get(root.attribute(r"calls=%?([\w.\-]+)") or "")
        inner = fused.root if fused else None
        return (fused, inner, root.operands) if fused and inner and inner.opcode == "compare" else None
    return (condition, root, []) if root and root.opcode == "compare" else None


def _even(values: list[int | None]) -> tuple[int, int] | None:
    """(first, step) of numbers that move evenly."""
    if None in values:
        return None
    known = [value for value in values if value is not None]
    steps = {later - earlier for earlier, later in itertools.pairwise(known)}
    return (known[0], steps.pop()) if len(steps) == 1 else None


def _integer(
    module: Module,
    computation: Computation,
    name: str,
    element: Mapping[int, int | None],
    parameters: list[int | None] | None = None,
) -> int | None:
    """The number that an instruction computes, where it follows from constants and the loop's tuple elements."""
    instruction = computation.instructions.get(name)
    if instruction is None:
        return None

    def of(operand: str) -> int | None:
        return _integer(module, computation, operand, element, parameters)

    match instruction.opcode:
        case "constant":
            found = re.match(r"\{?(-?\d+)\}?\)", instruction.rest)
            return int(found.group(1)) if found else None
        case "parameter":
            index = instruction.rest[: closing(instruction.rest)]
            given = dict(enumerate(parameters or ()))
            return given.get(int(index)) if index.isdecimal() else None
        case "get-tuple-element":
            source = computation.instructions.get(instruction.operand)
            index = instruction.attribute(r"index=(\d+)")
            return element.get(int(index)) if source and source.opcode == "parameter" and index else None
        case "copy" | "bitcast" | "convert" | "reshape":
            return of(instruction.operand)
        case "add" | "subtract" | "multiply":
            left, right = (of(operand) for operand in (*instruction.operands, "", "")[:2])
            if left is None or right is None:
                return None
            return {"add": left + right, "subtract": left - right, "multiply": left * right}[instruction.opcode]
        case "fusion":
            called = module.computations.get(instruction.attribute(r"calls=%?([\w.\-]+)") or "")
            given = [of(operand) for operand in instruction.operands]
            return _integer(module, called, called.root.name, {}, given) if called and called.root else None
        case _:
            return None


def _times(runs: int | None, times: int | None) -> int | None:
    if runs == 0 or times == 0:
        return 0
    return None if runs is None or times is None else runs * times
