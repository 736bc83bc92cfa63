"""Blocks as stages of a pipeline: micro-batches go from one to the next, all stages at work on different ones.

Huang et al. 2019, "GPipe". Dims as in decoder.py, and G groups that split the batch, S stages, M micro-batches, b
examples of a group in a micro-batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..parallel.constraints import constrain, one_stage, token_groups
from ..spec.pipeline_info import PipelineInfo

Stage = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""Layers of a stage, its input [b, T, D] and the numbers of its examples [b], to its output."""


def through_stages(pipeline: PipelineInfo, stage: Stage, layers: Any, x: jax.Array) -> jax.Array:
    """The residual stream [B, T, D] behind all stages. `layers`: arrays that begin with all layers.

    There are M + S - 1 ticks, in which a stage works on what came to it in the last one: S - 1 times on nothing, zeros.
    """
    stages, microbatches = pipeline.stages, pipeline.microbatches
    (groups, _), (batch, *rest) = token_groups(), x.shape
    size = batch // (groups * microbatches)
    at = jnp.arange(stages)
    x = jnp.moveaxis(x.reshape(groups, microbatches, size, *rest), 1, 0)  # [M, G, b, T, D]
    inputs = jnp.where(_only(at == 0), x[:, :, None], 0)  # [M, G, S, b, T, D]
    inputs = _constrained(jnp.pad(inputs, [(0, stages - 1), *[(0, 0)] * (inputs.ndim - 1)]))

    def tick(moved: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        given, number = now
        microbatch = number - at
        examples = (jnp.arange(groups)[:, None, None] * microbatches + microbatch[:, None]) * size + jnp.arange(size)
        with one_stage() as (group_axes, stage_axes):
            each = jax.vmap(stage, spmd_axis_name=stage_axes)
            out = jax.vmap(each, spmd_axis_name=group_axes or None)(layers, given + moved, examples)
        return _to_next(out, pipeline), out

    ticks = jnp.arange(microbatches + stages - 1)
    _, out = jax.lax.scan(tick, jnp.zeros_like(inputs[0]), (inputs, ticks))
    out = _constrained(out)[stages - 1 :]
    last = jnp.sum(jnp.where(_only(at == stages - 1), out, 0), axis=2)  # [M, G, b, T, D]
    return jnp.moveaxis(last, 0, 1).reshape(batch, *rest)


def spread(layers: jax.Array, pipeline: PipelineInfo, *logical_axes: str | None) -> jax.Array:
    """[L, …] as [G, S, L ÷ S, …]: the layers of each stage, a copy for each group of the batch.

    Devices hold no more than one copy for it. But gradients are summed over the micro-batches inside a group before the
    groups are, so that they cross the mesh once a step and not once a tick.
    """
    stages = layers.reshape(pipeline.stages, -1, *layers.shape[1:])
    copies = jnp.broadcast_to(stages, (token_groups()[0], *stages.shape))
    return constrain(copies, "batch", "layers", None, *logical_axes)


def _only(stages: jax.Array) -> jax.Array:
    """[S] beside [S, b, T, D]."""
    return stages[:, None, None, None]


def _constrained(x: jax.Array) -> jax.Array:
    """All ticks of [G, S, b, T, D]."""
    return constrain(x, None, "batch", "layers", None, "seq", "activation_embed")


def _to_next(x: jax.Array, pipeline: PipelineInfo) -> jax.Array:
    """Every stage's [G, S, b, T, D] to the stage after it; zeros to the first."""
    axes = tuple(pipeline.axes)
    ring = [(stage, stage + 1) for stage in range(pipeline.stages - 1)]
    spec = PartitionSpec(None, axes)
    return jax.shard_map(
        lambda x: jax.lax.ppermute(x, axes, ring), axis_names=set(axes), in_specs=spec, out_specs=spec
    )(x)
