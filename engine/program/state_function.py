"""Compiled functions of the train state that a switch, a save or an evaluation calls."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered

from ..models.task import TrainState
from .digest import digests, shard_digests


@dataclass(frozen=True)
class StateFunction:
    """A function of the train state, compiled at the first call, or before that by `compile`."""

    lower: Callable[[], Lowered]
    """Lowers the function."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _compiled(self) -> Compiled:
        return self.lower().compile()

    def compile(self) -> Compiled:
        """Compiles the function once, in the first thread that calls this."""
        with self._lock:
            return self._compiled

    def __call__(self, *arguments: object) -> jax.Array:
        return self.compile()(*arguments)


def state_function(
    function: Callable[[TrainState], jax.Array], state: TrainState, is_by_device: bool = False
) -> StateFunction:
    """Returns a function of states like the abstract `state`, which has shardings.

    Its result is replicated, or split over all devices of the mesh along its first dim if it `is_by_device`.
    """

    def lower() -> Lowered:
        mesh = jax.tree.leaves(state)[0].sharding.mesh
        spec = PartitionSpec(mesh.axis_names) if is_by_device else PartitionSpec()
        return jax.jit(function, out_shardings=NamedSharding(mesh, spec)).lower(state)

    return StateFunction(lower)


def digest_function(state: TrainState) -> StateFunction:
    """Returns `digests` as a function of states like the abstract `state`."""
    return state_function(partial(digests, shardings=jax.tree.map(lambda leaf: leaf.sharding, state)), state)


def shard_digest_function(state: TrainState) -> StateFunction:
    """Returns `shard_digests` as a function of states like the abstract `state`; each device keeps its own row."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return state_function(partial(shard_digests, shardings=shardings), state, is_by_device=True)
