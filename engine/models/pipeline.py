"""Pipeline parallelism: each stage holds some of the layers and works on a different micro-batch.

Huang et al. 2019, "GPipe". Dims as in decoder.py, but S stages, and M micro-batches, b examples per group and
micro-batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..parallel.constraints import constrain, one_stage, token_groups
from ..spec.pipeline_info import PipelineInfo

Stage = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""Maps a stage's layers, its input [b, T, D] and the indices of its examples [b] to its output [b, T, D]."""


def apply_stages(pipeline: PipelineInfo, stage: Stage, layers: Any, x: jax.Array) -> jax.Array:
    """Applies all stages to the residual stream [B, T, D]. `layers` are arrays from `stack_stages`.

    There are M + S - 1 ticks. In each, a stage processes what the previous stage sent in the tick before; in S - 1 of
    them it has no micro-batch and computes on padding.
    """
    stages, microbatches = pipeline.stages, pipeline.microbatches
    (groups, _), (batch, *rest) = token_groups(), x.shape
    size = batch // (groups * microbatches)
    stage_index = jnp.arange(stages)
    x = jnp.moveaxis(x.reshape(groups, microbatches, size, *rest), 1, 0)  # [M, G, b, T, D]
    inputs = jnp.where(_per_stage(stage_index == 0), x[:, :, None], 0)  # [M, G, S, b, T, D]
    inputs = _constrain_ticks(jnp.pad(inputs, [(0, stages - 1), *[(0, 0)] * (inputs.ndim - 1)]))

    def tick(received: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        entering, number = now  # received is 0 in the first stage, entering in all others
        microbatch = number - stage_index
        examples = (jnp.arange(groups)[:, None, None] * microbatches + microbatch[:, None]) * size + jnp.arange(size)
        with one_stage() as (group_axes, stage_axes):
            each = jax.vmap(stage, spmd_axis_name=stage_axes)
            out = jax.vmap(each, spmd_axis_name=group_axes or None)(layers, entering + received, examples)
        return _send_to_next(out, pipeline), out

    ticks = jnp.arange(microbatches + stages - 1)
    _, out = jax.lax.scan(tick, jnp.zeros_like(inputs[0]), (inputs, ticks))
    out = _constrain_ticks(out)[stages - 1 :]
    last = jnp.sum(jnp.where(_per_stage(stage_index == stages - 1), out, 0), axis=2)  # [M, G, b, T, D]
    return jnp.moveaxis(last, 0, 1).reshape(batch, *rest)


def stack_stages(layers: jax.Array, pipeline: PipelineInfo, *logical_axes: str | None) -> jax.Array:
    """Reshapes [L, …] to [G, S, L ÷ S, …]: the layers of each stage, with one copy per group of the batch.

    Each device still holds a single copy. Gradients are summed over the micro-batches inside a group before they are
    summed over the groups: they cross the mesh once per step instead of once per tick.
    """
    stages = layers.reshape(pipeline.stages, -1, *layers.shape[1:])
    copies = jnp.broadcast_to(stages, (token_groups()[0], *stages.shape))
    return constrain(copies, "batch", "layers", None, *logical_axes)


def _per_stage(stages: jax.Array) -> jax.Array:
    """Reshapes [S] to broadcast against [S, b, T, D]."""
    return stages[:, None, None, None]


def _constrain_ticks(x: jax.Array) -> jax.Array:
    """Constrains the layout of all ticks, [M + S - 1, G, S, b, T, D]."""
    return constrain(x, None, "batch", "layers", None, "seq", "activation_embed")


def _send_to_next(x: jax.Array, pipeline: PipelineInfo) -> jax.Array:
    """Sends each stage's [G, S, b, T, D] to the next stage; the first stage gets zeros."""
    axes = tuple(pipeline.axes)
    ring = [(stage, stage + 1) for stage in range(pipeline.stages - 1)]
    spec = PartitionSpec(None, axes)
    return jax.shard_map(
        lambda x: jax.lax.ppermute(x, axes, ring), axis_names=set(axes), in_specs=spec, out_specs=spec
    )(x)
