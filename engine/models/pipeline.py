"""Pipeline parallelism: each stage holds some of the layers and works on a different micro-batch.

Huang et al. 2019, "GPipe"; with repeats, each micro-batch passes through the stages several times (Narayanan et al.
2021, "Efficient Large-Scale Language Model Training", section 2.2). Dims as in decoder.py, but S stages, R repeats, M
micro-batches, and b examples per group and micro-batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..parallel.constraints import constrain, one_stage, token_groups
from ..spec.pipeline_info import PipelineInfo

Stage = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""Maps consecutive layers, their input [b, T, D] and the indices of its examples [b] to their output [b, T, D]."""


def apply_stages(
    pipeline: PipelineInfo, stage: Stage, layers: Any, x: jax.Array, saves: Callable[..., bool]
) -> jax.Array:
    """Applies all layers to the residual stream [B, T, D].

    `layers`: arrays from `stack_stages`. `saves`: the policy of `jax.checkpoint` for what a tick saves.

    There are R M + S - 1 ticks. In each, a stage processes what the previous stage sent in the tick before; in S - 1
    of them it has no micro-batch, and what it computes is not used. What the last stage sends waits in the first until
    all micro-batches have entered, then it enters again.
    """
    stages, microbatches = pipeline.stages, pipeline.microbatches
    (groups, _), (batch, *rest) = token_groups(), x.shape
    size = batch // (groups * microbatches)
    stage_index = jnp.arange(stages)
    is_first = (stage_index == 0)[:, None, None, None]
    x = jnp.moveaxis(x.reshape(groups, microbatches, size, *rest), 1, 0)  # [M, G, b, T, D]
    waiting = _constrain_waiting(jnp.where(is_first, x[:, :, None], 0))  # [M, G, S, b, T, D]

    @partial(jax.checkpoint, prevent_cse=False, policy=saves)
    def apply(layers: Any, repeats: jax.Array, x: jax.Array, examples: jax.Array) -> jax.Array:
        chosen = _layers_of(layers, repeats, pipeline)
        with one_stage() as (group_axes, stage_axes):
            each = jax.vmap(stage, spmd_axis_name=stage_axes)
            return jax.vmap(each, spmd_axis_name=group_axes or None)(chosen, x, examples)

    def tick(carry: tuple[jax.Array, jax.Array], number: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        received, waiting = carry
        slot = (number - stages) % microbatches
        waiting = waiting.at[slot].set(jnp.where(number < stages, waiting[slot], received))
        entering = jnp.where(is_first, waiting[number % microbatches], received)
        repeat, microbatch = jnp.divmod(number - stage_index, microbatches)
        examples = (jnp.arange(groups)[:, None, None] * microbatches + microbatch[:, None]) * size + jnp.arange(size)
        out = apply(layers, jnp.clip(repeat, 0, pipeline.repeats - 1), entering, examples)
        return (_send_to_next(out, pipeline), waiting), None

    (last, waiting), _ = jax.lax.scan(tick, (jnp.zeros_like(waiting[0]), waiting), jnp.arange(pipeline.ticks))
    x = jnp.sum(jnp.where(is_first, waiting.at[-1].set(last), 0), axis=2)  # [M, G, b, T, D]
    return jnp.moveaxis(x, 0, 1).reshape(batch, *rest)


def stack_stages(layers: jax.Array, pipeline: PipelineInfo, *logical_axes: str | None) -> jax.Array:
    """Reshapes [L, …] to [G, R, S, L ÷ R S, …]: the layers of each stage, with one copy per group of the batch.

    Each device still holds a single copy. Gradients are summed over the micro-batches inside a group before they are
    summed over the groups: they cross the mesh once per step instead of once per tick.
    """
    if pipeline.repeats > 1:
        return _copy_per_group(_interleave(layers, pipeline), *logical_axes)
    return _copy_per_group(layers.reshape(1, pipeline.stages, -1, *layers.shape[1:]), *logical_axes)


def stack_keys(keys: jax.Array, pipeline: PipelineInfo) -> jax.Array:
    """Reshapes one key per layer, replicated [L], to [G, R, S, L ÷ R S]."""
    return _copy_per_group(keys.reshape(pipeline.repeats, pipeline.stages, -1))


def _copy_per_group(stages: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Returns a copy of [R, S, L ÷ R S, …] for each group, split over the stages."""
    copies = jnp.broadcast_to(stages, (token_groups()[0], *stages.shape))
    return constrain(copies, "batch", None, "layers", None, *logical_axes)


def _interleave(layers: jax.Array, pipeline: PipelineInfo) -> jax.Array:
    """Sends each stage the chunks of layers that it applies: [L, …], split over the stages, to [R, S, L ÷ R S, …]."""
    axes, stages, repeats = tuple(pipeline.axes), pipeline.stages, pipeline.repeats

    def exchange(layers: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index(axes)
        own = layers.reshape(repeats, 1, -1, *layers.shape[1:])
        found = jnp.zeros_like(own)
        for sent in pipeline.exchanges:  # chunks, by the stage that has them
            received = sorted(sent, key=lambda chunk: chunk % stages)
            chunk = own[jnp.array(sent)[stage] % repeats]
            chunk = jax.lax.ppermute(chunk, axes, [(chunk // repeats, chunk % stages) for chunk in sent])
            found = found.at[jnp.array(received)[stage] // stages].set(chunk)
        return found

    return _per_stage(exchange, pipeline, PartitionSpec(axes), PartitionSpec(None, axes))(layers)


def _layers_of(layers: Any, repeats: jax.Array, pipeline: PipelineInfo) -> Any:
    """Selects from [G, R, S, …] the layers of each stage's repeat [S]: [G, S, …]."""
    if pipeline.repeats == 1:
        return jax.tree.map(lambda x: x[:, 0], layers)
    axes = tuple(pipeline.axes)

    def select(layers: Any, repeats: jax.Array) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, repeats[0], 1, keepdims=False), layers)

    in_specs = PartitionSpec(None, None, axes), PartitionSpec(axes)
    return _per_stage(select, pipeline, in_specs, PartitionSpec(None, axes))(layers, repeats)


def _send_to_next(x: jax.Array, pipeline: PipelineInfo) -> jax.Array:
    """Sends each stage's [G, S, b, T, D] to the next stage, and that of the last to the first."""
    axes, spec = tuple(pipeline.axes), PartitionSpec(None, tuple(pipeline.axes))
    ring = [(stage, (stage + 1) % pipeline.stages) for stage in range(pipeline.stages)]
    return _per_stage(lambda x: jax.lax.ppermute(x, axes, ring), pipeline, spec, spec)(x)


def _per_stage(function: Callable[..., Any], pipeline: PipelineInfo, in_specs: Any, out_specs: Any) -> Any:
    """Returns a function that each stage applies to its own part."""
    return jax.shard_map(function, axis_names=set(pipeline.axes), in_specs=in_specs, out_specs=out_specs)


def _constrain_waiting(x: jax.Array) -> jax.Array:
    """Constrains the layout of one input per micro-batch, [M, G, S, b, T, D]."""
    return constrain(x, None, "batch", "layers", None, "seq", "activation_embed")
