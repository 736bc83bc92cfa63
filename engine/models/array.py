"""The description of one array, made before the array: no device is touched for it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ..parallel.rules import LogicalAxes


@dataclass(frozen=True)
class Array:
    names: tuple[str, ...]
    """Its own; a moment's is followed by its parameter's, whose layout it takes where no override names it."""
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    logical_axes: LogicalAxes


class Batch(NamedTuple):
    """Of text."""

    inputs: Any
    """int32 [B, T]"""
    targets: Any
    """int32 [B, T]"""


def text_batch(batch_size: int, seq_len: int) -> Batch:
    """Of `Array`s."""
    shape, axes = (batch_size, seq_len), ("batch", "seq")
    return Batch(*(Array((f"batch.{name}",), "batch", shape, jnp.dtype("int32"), axes) for name in Batch._fields))


def gradient_name(parameter: str) -> str:
    return f"grad.{parameter}"


def name_of(path: tuple[Any, ...], with_numbers: bool = False) -> str:
    """A key path as `blocks.mlp.up.kernel`. The numbers by which optax chains its states are left out."""
    kept = [key for key in path if with_numbers or not isinstance(key, jax.tree_util.SequenceKey)]
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in kept)


def annotated_axes(leaf: Any) -> LogicalAxes:
    """What the dims of a module's array are called, whole from where the annotation ends. Several mesh axes of one dim
    are `data+model`."""
    annotation = leaf.get_metadata().get("out_sharding") if isinstance(leaf, nnx.Variable) else None
    names = tuple(getattr(annotation, "spec", annotation) or ())
    axes = tuple("+".join(name) if isinstance(name, tuple) else name for name in names)
    named = tuple(axis if isinstance(axis, str) and axis else None for axis in axes)
    return (*named, *[None] * (len(leaf.shape) - len(named)))
