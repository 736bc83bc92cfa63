"""The calls of jitted functions that were looked at: which function takes its own results, and which are called beside
the step."""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax

from .jitted import ALWAYS_SHOWN, Call
from .scalars import Scalars, is_scalar

MOST_LOOKS = ALWAYS_SHOWN + 2
"""Calls of a function whose scalars are kept."""
MOST_SCALARS = 64
"""Scalars of a call that are kept."""


class Look(NamedTuple):
    """A call that was looked at."""

    number: int
    ended: float
    """When it returned."""
    seconds: float
    """Of all calls until then."""
    scalars: dict[int, Any]
    """Its floating scalars, by their index among the leaves of its results."""


class Looks:
    """The last calls of one function that were looked at. No other arrays than scalars are kept."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.last: deque[Look] = deque(maxlen=MOST_LOOKS)
        self.scalars: Scalars
        self.state: dict[int, int] = {}
        """Of each result that the next call took, its index and the identity of the array."""
        self.state_bytes = 0
        self._taken: Mapping[int, weakref.ref[Any]] = {}
        self._made: Mapping[int, weakref.ref[Any]] = {}

    def add(self, call: Call, taken: Sequence[Any], made: Sequence[Any]) -> None:
        """`taken`, `made`: the leaves of its arguments and results."""
        arrays = {id(leaf): leaf for leaf in taken if isinstance(leaf, jax.Array)}
        is_next = bool(self.last) and self.last[-1].number == call.calls.count - 1
        before = {at: id(made()) for at, made in self._made.items()} if is_next else {}
        self.state = {at: identity for at, identity in before.items() if identity in arrays}
        self.state_bytes = sum(arrays[identity].nbytes for identity in {*self.state.values()})
        calls = call.calls
        calls.bytes = max(calls.bytes, sum(array.nbytes for array in arrays.values()))
        self.scalars = Scalars(call.result, self.state, calls.is_mapped)
        scalars = [(at, leaf) for at, leaf in enumerate(made) if is_scalar(leaf, calls.is_mapped)]
        self.last.append(Look(calls.count, calls.ended, calls.seconds, dict(scalars[:MOST_SCALARS])))
        self._taken, self._made = _references(taken), _references(made)

    @property
    def taken(self) -> set[int]:
        """Identities of the arrays that the last call took, as far as they are alive."""
        return _alive(self._taken)

    @property
    def made(self) -> set[int]:
        """Identities of the arrays that the last call returned, as far as they are alive."""
        return _alive(self._made)

    def is_once_a_step(self, begin: float, end: float) -> bool:
        """Returns whether the last call came after `end`, and the one before it between `begin` and `end`."""
        if len(self.last) < 2:
            return False
        before, last = self.last[-2], self.last[-1]
        return before.number == last.number - 1 and begin < before.ended < end < last.ended

    def latest(self, since: float) -> list[Look]:
        """Returns the adjacent calls up to the last one, and of these the ones that returned after `since`."""
        first = self.last[-1].number - len(self.last) + 1
        return [look for at, look in enumerate(self.last, first) if look.number == at and look.ended > since]


def _references(leaves: Iterable[Any]) -> dict[int, weakref.ref[Any]]:
    return {at: weakref.ref(leaf) for at, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}


def _alive(references: Mapping[int, weakref.ref[Any]]) -> set[int]:
    return {id(array) for array in (reference() for reference in references.values()) if array is not None}
