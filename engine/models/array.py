"""Descriptions of arrays, made before the arrays exist and without touching a device."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ..parallel.rules import LogicalAxes


@dataclass(frozen=True)
class Array:
    """Describes one array of the state or the batch."""

    names: tuple[str, ...]
    """The array's name; then, for a moment, its parameter's, whose layout it shares unless an override names it."""
    kind: str
    """`parameter`, `moment`, `variable`, `scalar`, `batch`, `gradient`, `update` or `activation`."""
    shape: tuple[int, ...]
    dtype: Any
    logical_axes: LogicalAxes

    @property
    def is_stacked(self) -> bool:
        """Whether the array has all layers of the model, along its first dim."""
        return bool(self.logical_axes) and self.logical_axes[0] == "layers"


Scalars = dict[str, jax.Array]
"""Scalars of a step, float32 [], by name: `loss` is the loss before the step."""


class Batch(NamedTuple):
    inputs: Any
    targets: Any


def text_batch(batch_size: int, seq_len: int) -> Batch:
    """Returns `Array`s of int32 [B, T]."""
    shape, axes = (batch_size, seq_len), ("batch", "seq")
    return Batch(*(Array((f"batch.{name}",), "batch", shape, jnp.dtype("int32"), axes) for name in Batch._fields))


def gradient_name(parameter: str) -> str:
    return f"grad.{parameter}"


def name_of(path: tuple[Any, ...], with_indices: bool = False) -> str:
    """Returns a key path as a name such as `blocks.mlp.up.kernel`. Drops sequence indices unless `with_indices`."""
    kept = [key for key in path if with_indices or not isinstance(key, jax.tree_util.SequenceKey)]
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in kept)


def annotated_axes(leaf: Any) -> LogicalAxes:
    """Returns the axis names in an array's annotation, None for dims beyond it; `data+model` for several axes."""
    annotation = leaf.get_metadata().get("out_sharding") if isinstance(leaf, nnx.Variable) else None
    names = tuple(getattr(annotation, "spec", annotation) or ())
    axes = tuple("+".join(name) if isinstance(name, tuple) else name for name in names)
    named = tuple(axis if isinstance(axis, str) and axis else None for axis in axes)
    return (*named, *[None] * (len(leaf.shape) - len(named)))


def describe(tree: Any, state: nnx.State, kind: str) -> Any:
    """Returns `tree` with an `Array` in place of every leaf; `state` holds the annotations."""
    axes = {name_of(path): annotated_axes(leaf) for path, leaf in nnx.to_flat_state(state)}

    def array(path: Any, leaf: Any) -> Array:
        name = name_of(path)
        return Array((name,), kind, leaf.shape, leaf.dtype, axes[name])

    return jax.tree_util.tree_map_with_path(array, tree)
