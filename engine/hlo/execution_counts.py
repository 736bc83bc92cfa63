"""How often each computation of a compiled module runs: from its call sites, and from the trip counts of loops, which
the compiler notes, or which follow from counter, step and bound."""

import re
from collections import Counter

from ..base.call_graph import walk_of
from .module import BODY, CONDITION, Computation, Instruction, Module, number

CALLED = re.compile(
    r" (calls|to_apply|body|condition|true_computation|false_computation|branch_computations)="
    r"(?:\{([^{}]*)\}|%?([\w.\-]+))"
)
NAME = re.compile(r"[\w.\-]+")
CONTAINERS = {"while", "call", "conditional"}
"""Opcodes whose time and work are the sums over the operations inside."""
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
LITERAL = re.compile(r"\{?(-?\d{1,20})\}?\)")
COPIES = ("copy", "bitcast", "convert", "reshape")
"""Opcodes that pass an integer on."""
MAX_COPIES = 20
"""Copies of copies that are followed: a valid program has a few."""
MAX_DEPTH = 100
"""Loops and calls within each other: a valid program has a few."""
MAX_VISITS, MAX_REPEATED = 4, 10_000
"""Visits of a walk for each instruction of the text, and besides."""
MAX_RUNS = 2**63
"""No program runs anything this often."""


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Returns how often a `while` in `caller` runs its body each time; None if that is unknown.

    Compilers for CPU and GPU note it. In TPU programs it follows from a counter, an element of the loop's tuple that
    the body adds a constant to, and from the bound that the condition compares it with.
    """
    noted = KNOWN_TRIPS.search(loop.rest)
    if noted:
        return number(noted[1])
    body, condition = (module.computations.get(loop.attribute(role) or "") for role in (BODY, CONDITION))
    start = caller.instructions.get(loop.operand)
    compare = condition.root if condition else None
    if not (body and body.root and body.root.opcode == "tuple" and start and start.opcode == "tuple"):
        return None
    if not (condition and compare and compare.attribute(r"direction=(\w+)") == "LT" and len(compare.operands) == 2):
        return None
    counter, bound = (_element(condition, name) for name in compare.operands)
    first, step = _constant(caller, _operand(start, counter)), _step(body, counter)
    last = _constant(condition, compare.operands[1])
    if last is None and bound is not None and _element(body, _operand(body.root, bound)) == bound:
        last = _constant(caller, _operand(start, bound))
    if first is None or last is None or step is None:
        return None
    return max(0, -((first - last) // step))


def _step(body: Computation, at: int | None) -> int | None:
    """What a loop adds to this element of its tuple, if that is a positive constant."""
    added = _plain(body, _operand(body.root, at)) if body.root else None
    if added is None or added.opcode != "add" or at not in [_element(body, name) for name in added.operands]:
        return None
    return next((step for name in added.operands if (step := _constant(body, name)) and step > 0), None)


def _operand(built: Instruction, at: int | None) -> str:
    """The name of an element of a tuple; empty if there is none."""
    return "" if at is None or at >= len(built.operands) else built.operands[at]


def _plain(where: Computation, name: str) -> Instruction | None:
    """What computes a value that may be copied or converted."""
    found = where.instructions.get(name)
    for _ in range(MAX_COPIES):
        if found is None or found.opcode not in COPIES:
            break
        found = where.instructions.get(found.operand)
    return found


def _constant(where: Computation, name: str) -> int | None:
    found = _plain(where, name)
    literal = LITERAL.match(found.rest) if found and found.opcode == "constant" else None
    return int(literal[1]) if literal else None


def _element(where: Computation, name: str) -> int | None:
    """The index of a value in the tuple that the computation is given; None if it is computed."""
    found = _plain(where, name)
    source = where.instructions.get(found.operand) if found and found.opcode == "get-tuple-element" else None
    return found.index if found and source and source.opcode == "parameter" else None


def called(instruction: Instruction) -> list[tuple[str, str]]:
    """Returns the names of the computations that an instruction refers to, each after its role, such as `body`."""
    found = CALLED.findall(instruction.rest)
    return [(role, name) for role, several, one in found for name in NAME.findall(several or one)]


def callees(instruction: Instruction) -> list[str]:
    """Returns the names of the computations that a call, a loop or a conditional runs."""
    return [name for _, name in called(instruction)] if instruction.opcode in CONTAINERS else []


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


def runs(module: Module) -> dict[str, int | None]:
    """Returns how often each computation runs when the module runs once; None if that depends on data or a branch.

    A computation is counted once all its callers are. One that calls itself, which no valid module has, is None.
    """
    calls = _calls(module)
    uncounted = Counter(callee for made in calls.values() for callee, _ in made)
    counts: dict[str, int | None] = {name: int(name == module.entry) for name in module.computations}
    counted = [name for name in module.computations if not uncounted[name]]
    for caller in counted:
        for callee, times in calls.get(caller, ()):
            counts[callee] = _sum(counts[callee], _times(counts[caller], times))
            uncounted[callee] -= 1
            if not uncounted[callee]:
                counted.append(callee)
    return counts | dict.fromkeys(+uncounted)


def _calls(module: Module) -> dict[str, list[tuple[str, int | None]]]:
    """Each caller to the computations that it calls, and the calls per run of the caller; None if unknown."""
    calls: dict[str, list[tuple[str, int | None]]] = {}
    for where, instruction in module.instructions():
        if instruction.opcode in ("async-update", "async-done"):
            continue
        found = [(role, name) for role, name in called(instruction) if name in module.computations]
        if not found:
            continue
        times = None if instruction.opcode == "conditional" else 1
        if instruction.opcode == "while":
            times = trip_count(module, where, instruction)
        for role, name in found:
            more = 1 if role == "condition" else 0
            calls.setdefault(where.name, []).append((name, None if times is None else times + more))
    return calls


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None or one + other >= MAX_RUNS else one + other


def _times(runs: int | None, times: int | None) -> int | None:
    if runs == 0 or times == 0:
        return 0
    return None if runs is None or times is None or runs * times >= MAX_RUNS else runs * times
