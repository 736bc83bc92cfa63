"""How often each computation of a compiled module runs, from the trip counts of loops and the call sites."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .hlo import Computation, Instruction, Module
from .trip_counts import Trips

CONDITION = " condition="
ROLES = (" calls=", " to_apply=", " body=", CONDITION, " true_computation=", " false_computation=")
BRANCHES = " branch_computations={"
NAME = re.compile(r"%?([\w.\-]+)")
MAX_RUNS = 2**63
"""No program runs anything this often."""


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
        if role == CONDITION and times is not None:
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
