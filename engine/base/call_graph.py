"""How much a walk through a program visits that follows every call, counted before any such walk.

Computations that call others twice, level by level, are a small text and an endless walk.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

ENDLESS = 2**62


class Walk(NamedTuple):
    """`ENDLESS` where a computation calls itself."""

    visits: int
    """Instructions, those of a computation once for each call."""
    depth: int
    """Computations within each other."""


def walk_of(entry: str, sizes: Mapping[str, int], calls: Mapping[str, Sequence[str]]) -> Walk:
    """Returns the size of a walk from `entry`; it looks at every computation once. `sizes`: the instructions of each
    computation. `calls`: the computations that each calls, as often as it does."""
    known: dict[str, Walk] = {}
    try:
        for name in TopologicalSorter(calls).static_order():
            inner = [known[callee] for callee in calls.get(name, ())]
            visits = sizes.get(name, 0) + sum(each.visits for each in inner)
            known[name] = Walk(min(visits, ENDLESS), 1 + max((each.depth for each in inner), default=0))
    except CycleError:
        return Walk(ENDLESS, ENDLESS)
    return known.get(entry, Walk(sizes.get(entry, 0), 1))
