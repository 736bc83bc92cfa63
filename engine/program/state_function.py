"""Compiled functions of the train state that a switch or a save calls."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Compiled

from ..models.task import TrainState
from .digest import digests


@dataclass(frozen=True)
class StateFunction:
    """A function of the train state, compiled at the first call, or before that by `compile`."""

    function: Callable[[TrainState], jax.Array]
    """The function to compile; its result is replicated."""
    state: TrainState
    """The abstract state, with the shardings of the arguments."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _compiled(self) -> Compiled:
        mesh = jax.tree.leaves(self.state)[0].sharding.mesh
        return jax.jit(self.function, out_shardings=NamedSharding(mesh, PartitionSpec())).lower(self.state).compile()

    def compile(self) -> Compiled:
        """Compiles the function once, in the first thread that calls this."""
        with self._lock:
            return self._compiled

    def __call__(self, state: TrainState) -> jax.Array:
        """Calls the compiled function."""
        return self.compile()(state)


def digest_function(state: TrainState) -> StateFunction:
    """Returns `digests` as a function of states like the abstract `state`."""
    return StateFunction(partial(digests, shardings=jax.tree.map(lambda leaf: leaf.sharding, state)), state)
