"""Fills the parameters of a new state from the tensors of a model of transformers, shard by shard."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..models.array import name_of
from ..models.task import TrainState
from ..spec.config import RunConfig
from ..spec.hf_config import architecture_of
from ..spec.hf_tensors import Part, parts_of
from ..spec.model_config import ModelConfig
from ..spec.safetensors import Stored, stored_tensors

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
"""numpy's dtypes, by their names in files."""
Slices = tuple[int | slice, ...]


def with_weights(state: TrainState, config: RunConfig) -> TrainState:
    """Returns a new state with the parameters of the run's directory of weights, in the same layout.

    Shards are read one after the other, part by part, from mapped files: beside the parameters, host memory holds one
    shard and one tensor at a time. Raises UserError if the files have changed since they were checked.
    """
    assert config.weights is not None and isinstance(config.model, ModelConfig)
    tensors = stored_tensors(Path(config.weights))
    parts = by_parameter(parts_of(config.model, architecture_of(Path(config.weights)), set(tensors)))

    def filled(path: Any, leaf: jax.Array) -> jax.Array:
        shape, sharding, dtype = leaf.shape, leaf.sharding, leaf.dtype
        leaf.delete()
        own = parts[name_of(path)]
        shards = [
            jax.device_put(_shard(own, tensors, index, shape, dtype), device).block_until_ready()
            for device, index in sharding.addressable_devices_indices_map(shape).items()
        ]
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return state._replace(params=jax.tree_util.tree_map_with_path(filled, state.params))


def by_parameter(parts: Iterable[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.parameter, []).append(part)
    return found


def _shard(
    parts: Iterable[Part], tensors: dict[str, Stored], index: Any, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    """Returns one shard of a parameter: the elements `index`."""
    bounds = [range(*each.indices(size)) for each, size in zip(index, shape, strict=True)]
    shard = _aligned([len(bound) for bound in bounds], dtype)
    for part, taken, here in parts_in(parts, bounds):
        shard[here] = part.from_file(mapped(tensors[part.tensor])[part.rows])[taken]
    return shard


def _aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an array without values, which a CPU device takes over without a copy: it starts at a multiple of 64."""
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + 64, np.uint8)
    begin = -buffer.ctypes.data % 64
    return buffer[begin : begin + size].view(dtype).reshape(shape)


def parts_in(parts: Iterable[Part], bounds: Sequence[range]) -> Iterator[tuple[Part, Slices, Slices]]:
    """Yields the parts that a shard of a parameter has something of: what of the part, and where in the shard.

    `bounds`: the elements of the shard in each dim of the parameter.
    """
    for part in parts:
        at = (*part.at, *[slice(None)] * (len(bounds) - len(part.at)))
        if not all(isinstance(place, slice) or place in bound for place, bound in zip(at, bounds, strict=True)):
            continue
        whole = [bound for place, bound in zip(at, bounds, strict=True) if isinstance(place, slice)]
        ends = [min(bound.stop, size) for bound, size in zip(whole, part.shape, strict=True)]
        taken = tuple(slice(min(bound.start, end), end) for bound, end in zip(whole, ends, strict=True))
        lengths = iter(each.stop - each.start for each in taken)
        here = tuple(
            slice(0, next(lengths)) if isinstance(p, slice) else p - b.start for p, b in zip(at, bounds, strict=True)
        )
        yield part, taken, here


def mapped(tensor: Stored, mode: Literal["r", "r+"] = "r") -> np.ndarray:
    """Returns a tensor as a view of its file: only what is read or written of it takes memory."""
    return np.memmap(tensor.file, DTYPES[tensor.dtype], mode, tensor.begin, tuple(tensor.shape))
