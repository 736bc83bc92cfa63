"""The blocks of the decoder: attention, the MLP, experts."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import PathParts
from jax.typing import DTypeLike

from ..parallel.constraints import (
    constrain,
    gathered,
    left_to_compiler,
    observe,
    out_sharding,
    shard,
)
from ..spec.config import ModelConfig
from .routing import route

Module = TypeVar("Module", bound=nnx.Module)

INIT_STDDEV = 0.02
"""Radford et al. 2019; projections into the residual stream are scaled by 1/√(2·layers) as there."""


def layer_norm(config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        config.embed,
        epsilon=1e-5,
        dtype=dtype,
        scale_init=nnx.with_partitioning(nnx.initializers.ones_init(), ("embed",)),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), ("embed",)),
        rngs=rngs,
    )


def _projection(
    sizes_in: tuple[int, ...],
    sizes_out: tuple[int, ...],
    axes_in: tuple[str, ...],
    axes_out: tuple[str, ...],
    stddev: float,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
    experts: int = 0,
    use_bias: bool = True,
) -> nnx.LinearGeneral:
    """A linear map from the last dims of its input, named `axes_in`, to new ones named `axes_out`. With experts, one
    for each of them, and the first dim of the input is theirs."""
    axes = ("experts",) if experts else ()
    return nnx.LinearGeneral(
        sizes_in,
        sizes_out,
        axis=tuple(range(-len(sizes_in), 0)),
        batch_axis={0: experts} if experts else {},
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=nnx.with_partitioning(nnx.initializers.normal(stddev), axes + axes_in + axes_out),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), axes + axes_out),
        rngs=rngs,
    )


class Attention(nnx.Module):
    """Causal multi-head self-attention.

    Query, key and value are one product, so that their gradient is reduced once and not three times.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, heads = (config.embed,), (config.heads, config.head_dim)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        self.qkv = _projection(width, (3, *heads), ("embed",), ("qkv", "heads", "head_dim"), INIT_STDDEV, dtype, rngs)
        self.out = _projection(heads, width, ("heads", "head_dim"), ("embed",), stddev, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        own, whole = (("batch", seq, "qkv", "heads", "head_dim") for seq in ("seq", "keys"))
        shape = (*x.shape[:2], 3, *self.qkv.out_features[1:])
        qkv = shard(self.qkv(x, out_sharding=out_sharding(shape, *own)), *own, name="blocks.attention.qkv")
        query, read = qkv[:, :, 0], qkv[:, :, 1:]  # [B, T, N, H], [B, T, 2, N, H]
        read = shard(read, *whole, gradient=own, name="blocks.attention.kv")
        lies = "batch", "seq", "heads", "head_dim"
        mixed = left_to_compiler(_attended, query, read, out=lies)  # [B, T, N, H]
        mixed = shard(mixed, *lies, name="blocks.attention.mixed")
        return self.out(mixed, out_sharding=out_sharding(x.shape, "batch", "seq", "activation_embed"))


def _attended(query: jax.Array, read: jax.Array) -> jax.Array:
    """[B, T, N, H] of queries [B, T, N, H] and what they read, keys and values [B, T, 2, N, H]."""
    return jax.nn.dot_product_attention(query, *jnp.unstack(read, axis=2), is_causal=True)


class Mlp(nnx.Module):
    """Two linear maps with a GELU (tanh form, as in GPT-2) between: [B, T, D] to [B, T, D]. With experts, as many of
    them as these, each for its own tokens: [E, B, C, D] to [E, B, C, D]."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, hidden = (config.embed,), (config.mlp,)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        self.up = _projection(width, hidden, ("embed",), ("mlp",), INIT_STDDEV, dtype, rngs, config.experts)
        self.down = _projection(hidden, width, ("mlp",), ("embed",), stddev, dtype, rngs, config.experts)
        self._tokens = ("experts", "expert_batch", "capacity") if config.experts else ("batch", "seq")

    def __call__(self, x: jax.Array) -> jax.Array:
        lies = out_sharding((*x.shape[:-1], *self.up.out_features), *self._tokens, "mlp")
        hidden = observe(self.up(x, out_sharding=lies), *self._tokens, "mlp", name="blocks.mlp.up")
        hidden = shard(nnx.gelu(hidden), *self._tokens, "mlp", name="blocks.mlp.hidden")
        return self.down(hidden, out_sharding=out_sharding(x.shape, *self._tokens, "activation_embed"))


class Mixture(nnx.Module):
    """A mixture of experts, [B, T, D] to [B, T, D], with the balance loss of each sequence, float32 [B].

    A router sends each token to the experts that it prefers for it (Lepikhin et al. 2020, "GShard"; Fedus et al. 2021,
    "Switch Transformers"). An expert takes so many tokens of a sequence and no more; those above pass it by. Each
    sequence is routed by itself, so that where a token goes depends on the mesh by rounding alone.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        width, experts = (config.embed,), (config.experts,)
        self.router = _projection(  # in float32: Fedus et al. 2021, section 2.4
            width, experts, ("embed",), ("router",), INIT_STDDEV, jnp.float32, rngs, use_bias=False
        )
        self.experts = Mlp(config, dtype, rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        lies = out_sharding((*x.shape[:2], self.config.experts), "batch", "seq", "router")
        choices = shard(
            jax.nn.softmax(self.router(x, out_sharding=lies)),
            *("batch", "keys", "router"),
            gradient=("batch", "seq", "router"),
            name="blocks.mlp.choices",
        )
        routing = route(choices, self.config.experts_per_token, self.config.capacity(x.shape[1]))
        dispatch, combine = (
            shard(slots.astype(x.dtype), "batch", "seq", "router", "capacity", name=f"blocks.mlp.{name}")
            for name, slots in (("dispatch", routing.dispatch), ("combine", routing.combine))
        )
        whole, split, exchanged = (
            (*dims, "activation_embed")
            for dims in (
                ("router", "batch", None),
                ("router", "batch", "capacity"),
                ("experts", "expert_batch", "capacity"),
            )
        )
        shape = self.config.experts, len(x), dispatch.shape[-1], x.shape[-1]
        sent = jnp.einsum("BTEC,BTD->EBCD", dispatch, x, out_sharding=out_sharding(shape, *split))
        sent = shard(sent, *split, gradient=whole, name="blocks.mlp.sent")
        received = shard(sent, *exchanged, name="blocks.mlp.received")
        computed = shard(self.experts(received), *exchanged, name="blocks.mlp.computed")
        returned = shard(computed, *whole, gradient=split, name="blocks.mlp.returned")
        lies = out_sharding(x.shape, "batch", "seq", "activation_embed")
        return jnp.einsum("BTEC,EBCD->BTD", combine, returned, out_sharding=lies), routing.balance


class Block(nnx.Module):
    """The residual stream [B, T, D] to what it is behind the block. `examples` [B] are their numbers in the batch."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.attention_norm = layer_norm(config, dtype, rngs)
        self.attention = Attention(config, dtype, rngs)
        self.mlp_norm = layer_norm(config, dtype, rngs)
        self.mlp = (Mixture if config.experts else Mlp)(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The residual stream [B, T, D], and of a mixture of experts the balance loss [B]. `examples`: numbers [B]."""
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            x = self._add(
                x,
                self.attention(normed(self.attention_norm, x, "blocks.attention_norm")),
                attention_key,
                examples,
                "attention",
            )
        with jax.named_scope("mlp"):
            branch = self.mlp(normed(self.mlp_norm, x, "blocks.mlp_norm"))
            branch, balance = branch if isinstance(branch, tuple) else (branch, None)
            return self._add(x, branch, mlp_key, examples, "mlp"), balance

    def _add(self, x: jax.Array, branch: jax.Array, key: jax.Array | None, examples: jax.Array, name: str) -> jax.Array:
        branch = shard(branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.branch")
        branch = dropped(self.dropout, branch, key, examples)
        return shard(x + branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.residual")


def _meets_activations(path: PathParts, _: object) -> bool:
    """Element by element: what is no kernel, whose product says how it lies."""
    return path[-1] in ("bias", "scale")


def as_used(module: Module) -> Module:
    """A part of the model whose parameters lie as they are used; under automatic axis types the same."""

    def lying(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["out_sharding"]
        return variable.replace(gathered(variable.get_value(), axes))

    graph, parameters, rest = nnx.split(module, _meets_activations, ...)
    parameters = jax.tree.map(lying, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    with nnx.use_eager_sharding(False):
        return nnx.merge(graph, parameters, rest)


def normed(norm: nnx.LayerNorm, x: jax.Array, name: str) -> jax.Array:
    return shard(norm(x), "batch", "seq", "activation_embed", name=name)


def dropped(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
    """What is dropped of an example follows from its number in the batch [B], whatever part of the batch `x` is."""
    if key is None:
        return x
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, examples)
    return jax.vmap(lambda x, key: dropout(x, rngs=key))(x, keys)


def example_numbers(x: jax.Array) -> jax.Array:
    """The numbers [B] of a whole batch [B, …]."""
    return constrain(jnp.arange(len(x)), "batch")
