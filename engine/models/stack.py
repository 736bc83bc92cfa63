"""Applies the stacked layers of a decoder: in a loop, or in the stages of a pipeline, each with another micro-batch.

Huang et al. 2019, "GPipe"; with repeats, each micro-batch passes through the stages several times (Narayanan et al.
2021, "Efficient Large-Scale Language Model Training", section 2.2). Dims as in decoder.py, but in a pipeline S stages,
R repeats, M micro-batches, and b examples per group and micro-batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from ..parallel.constraints import constrain, one_stage, token_groups
from ..spec.preset import PipelineInfo
from .blocks import Block

Apply = Callable[[Block, jax.Array, jax.Array | None, jax.Array], tuple[jax.Array, jax.Array | None]]
"""Maps a block, the residual stream [B, T, D], the key of dropout and the indices of the examples to the stream and the
balance loss [B]."""
Stage = Callable[[Any, jax.Array, jax.Array], jax.Array]
"""Maps consecutive layers, their input [b, T, D] and the indices of its examples [b] to their output [b, T, D]."""


def scan_layers(
    bodies: tuple[Apply, ...], blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Applies blocks whose arrays are stacked, [L, …], and returns the stream and the balance losses [L, B]. `bodies`
    apply the layers of one period, as the loop's body does; the rest after the last period follows the loop."""
    if len(bodies) == 1:
        return _scan(bodies[0], blocks, x, keys, examples)

    def apply_period(
        blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        found: list[jax.Array | None] = []
        for layer in range(_layers(blocks)):
            block = _part(blocks, partial(jax.lax.index_in_dim, index=layer, keepdims=False))
            x, balance = bodies[layer](block, x, None if keys is None else keys[layer], examples)
            found.append(balance)
        return x, _joined(jnp.stack, found)

    layers, balances = _layers(blocks), list[jax.Array | None]()
    whole = layers // len(bodies) * len(bodies)
    for start, end, period in ((0, whole, len(bodies)), (whole, layers, layers - whole)):
        if start < end:
            part = partial(_in_periods, start=start, end=end, period=period)
            x, found = _scan(apply_period, _part(blocks, part), x, None if keys is None else part(keys), examples)
            balances.append(None if found is None else found.reshape(end - start, -1))
    return x, _joined(jnp.concatenate, balances)


def _layers(blocks: Block) -> int:
    return len(jax.tree.leaves(nnx.state(blocks, nnx.Param))[0])


def _in_periods(array: jax.Array, start: int, end: int, period: int) -> jax.Array:
    return array[start:end].reshape(-1, period, *array.shape[1:])


def _joined(join: Callable[..., jax.Array], balances: list[jax.Array | None]) -> jax.Array | None:
    return None if balances[0] is None else join(balances)


def _scan(
    body: Apply, blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    scan = nnx.scan(
        body,
        in_axes=(0, nnx.Carry, None if keys is None else 0, None),
        out_axes=(nnx.Carry, 0),
        transform_metadata={nnx.PARTITION_NAME: "layers"},
    )
    return scan(blocks, x, keys, examples)


def _part(blocks: Block, function: Callable[[jax.Array], jax.Array]) -> Block:
    """Returns the blocks with another part, or another shape, of each stacked array; its axis names stay."""
    graph, state = nnx.split(blocks)
    state = jax.tree.map(
        lambda variable: variable.replace(function(variable.get_value())),
        state,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    with nnx.use_eager_sharding(False):
        return nnx.merge(graph, state)


def apply_stages(
    pipeline: PipelineInfo, stage: Stage, layers: Any, x: jax.Array, saves: Callable[..., bool]
) -> jax.Array:
    """Applies all layers, arrays from `stack_stages`, to the residual stream [B, T, D] in R M + S - 1 ticks. `saves`:
    the policy of `jax.checkpoint` for a tick. In each, a stage processes what the previous one sent in the tick before;
    in S - 1 of them it has no micro-batch, and its result is not used. The last stage's result waits in the first until
    all micro-batches have entered, then it enters again."""
    stages, microbatches = pipeline.stages, pipeline.microbatches
    (groups, _), (batch, *rest) = token_groups(), x.shape
    size = batch // (groups * microbatches)
    stage_index = jnp.arange(stages)
    is_first = (stage_index == 0)[:, None, None, None]
    x = jnp.moveaxis(x.reshape(groups, microbatches, size, *rest), 1, 0)  # [M, G, b, T, D]
    waiting = jnp.where(is_first, x[:, :, None], 0)  # [M, G, S, b, T, D]
    waiting = constrain(waiting, None, "batch", "layers", None, "seq", "activation_embed")

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
    """Reshapes [L, …] to [G, R, S, L ÷ R S, …]: the layers of each stage, with one copy per group of the batch, one per
    device. Gradients are summed over the micro-batches inside a group first: they cross the mesh once per step instead
    of once per tick."""
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
    axes, spec = tuple(pipeline.axes), PartitionSpec(None, tuple(pipeline.axes))
    ring = [(stage, (stage + 1) % pipeline.stages) for stage in range(pipeline.stages)]
    return _per_stage(lambda x: jax.lax.ppermute(x, axes, ring), pipeline, spec, spec)(x)


def _per_stage(function: Callable[..., Any], pipeline: PipelineInfo, in_specs: Any, out_specs: Any) -> Any:
    return jax.shard_map(function, axis_names=set(pipeline.axes), in_specs=in_specs, out_specs=out_specs)
