"""Collects the activations and gradients of a step while it is traced and compiled."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .rules import Decision, LogicalAxes, axes_of


@dataclass(frozen=True)
class Activation:
    """An activation of the step, with the layout that the rules give it."""

    shape: tuple[int, ...]
    dtype: Any
    logical_axes: LogicalAxes
    decision: Decision


@dataclass(frozen=True)
class Observed:
    """Intended and compiled layouts of a step's activations and gradients, by name."""

    activations: dict[str, Activation] = field(default_factory=dict)
    shardings: dict[str, Sharding] = field(default_factory=dict)
    names_only: bool = False
    """The program only names its values, with `checkpoint_name`."""

    def inspect(self, x: jax.Array, name: str, is_mapped: bool) -> jax.Array:
        """Returns `x`, and makes the compiler report its layout, or only names it. `is_mapped`: in one stage of a
        pipeline and one group of the batch."""
        if self.names_only:
            return checkpoint_name(x, name)

        def note(sharding: Sharding) -> None:  # the first one of a name: later ones are of recomputations
            self.shardings.setdefault(name, _of_stages(sharding) if is_mapped else sharding)

        if is_mapped:
            _inspect_mapped(x, note)
        else:
            jax.debug.inspect_array_sharding(x, callback=note)
        return x


def _inspect_mapped(x: jax.Array, callback: Callable[[Sharding], None]) -> None:
    """Reports the layout of `x` with the mapped dims of groups and stages: [G, S, b, …]."""

    @jax.custom_batching.custom_vmap
    def report(x: jax.Array) -> jax.Array:
        jax.debug.inspect_array_sharding(x, callback=callback)
        return x

    @report.def_vmap
    def _(size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return report(x), True

    report(jax.lax.stop_gradient(x))


def _of_stages(sharding: Sharding) -> NamedSharding:
    """Converts the sharding of [G, S, b, …] to one of [S, G × b, …]."""
    assert isinstance(sharding, NamedSharding), sharding
    groups, stages, examples, *rest = (*map(axes_of, sharding.spec), (), (), ())[: max(3, len(sharding.spec))]
    return NamedSharding(sharding.mesh, PartitionSpec(stages, (*groups, *examples), *rest))
