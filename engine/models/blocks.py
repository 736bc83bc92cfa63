"""The decoder's blocks: attention, MLP and mixture of experts."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import PathParts
from jax.typing import DTypeLike

from ..parallel.constraints import constrain, gathered, hinted, observe, out_sharding, shard
from ..spec.config import ModelConfig
from .attention_kernels import KEYS_AND_VALUES, OWN_KEYS_AND_VALUES, QUERY, attend, kernel_of
from .routing import route
from .sizes import AttentionKernels

Module = TypeVar("Module", bound=nnx.Module)

INIT_STDDEV = 0.02
"""From Radford et al. 2019, as is the factor 1/√(2·layers) for projections into the residual stream."""


def layer_norm(config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Returns a LayerNorm over `embed`, [B, T, D] to [B, T, D]."""
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
    """Returns a linear map from the input's last dims, named `axes_in`, to new dims named `axes_out`.

    With experts there is one map per expert, and the first dim of the input is the expert.
    """
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

    Query, key and value are one projection, so that their gradient is reduced once instead of three times.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, kernels: AttentionKernels, rngs: nnx.Rngs) -> None:
        self.kernels = kernels
        width, heads = (config.embed,), (config.heads, config.head_dim)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        self.qkv = _projection(width, (3, *heads), ("embed",), ("qkv", "heads", "head_dim"), INIT_STDDEV, dtype, rngs)
        self.out = _projection(heads, width, ("heads", "head_dim"), ("embed",), stddev, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D]."""
        qkv_axes = ("batch", "seq", "qkv", "heads", "head_dim")
        shape = (*x.shape[:2], 3, *self.qkv.out_features[1:])
        qkv = self.qkv(x, out_sharding=out_sharding(shape, *qkv_axes))
        qkv = shard(qkv, *qkv_axes, name="blocks.attention.qkv")
        query, kv = qkv[:, :, 0], qkv[:, :, 1:]  # [B, T, N, H], [B, T, 2, N, H]
        kernel = kernel_of(self.kernels, x.shape[1])
        kv_axes = OWN_KEYS_AND_VALUES if kernel.startswith("ring") else KEYS_AND_VALUES
        kv = shard(kv, *kv_axes, gradient=qkv_axes, name="blocks.attention.kv")
        mixed = shard(attend(query, kv, kernel), *QUERY, name="blocks.attention.mixed")  # [B, T, N, H]
        return self.out(mixed, out_sharding=out_sharding(x.shape, "batch", "seq", "activation_embed"))


class Mlp(nnx.Module):
    """Two linear maps with a GELU (tanh form, as in GPT-2) in between.

    With experts, it holds one such MLP per expert, each applied to that expert's tokens.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, hidden = (config.embed,), (config.mlp,)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        self.up = _projection(width, hidden, ("embed",), ("mlp",), INIT_STDDEV, dtype, rngs, config.experts)
        self.down = _projection(hidden, width, ("mlp",), ("embed",), stddev, dtype, rngs, config.experts)
        self._tokens = ("experts", "expert_batch", "capacity") if config.experts else ("batch", "seq")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D], with experts [E, B, C, D] to [E, B, C, D]."""
        sharding = out_sharding((*x.shape[:-1], *self.up.out_features), *self._tokens, "mlp")
        hidden = observe(self.up(x, out_sharding=sharding), *self._tokens, "mlp", name="blocks.mlp.up")
        hidden = shard(nnx.gelu(hidden), *self._tokens, "mlp", name="blocks.mlp.hidden")
        return self.down(hidden, out_sharding=out_sharding(x.shape, *self._tokens, "activation_embed"))


class Mixture(nnx.Module):
    """A mixture of experts.

    A router sends each token to its most probable experts (Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch
    Transformers"). An expert takes a limited number of tokens per sequence and skips the rest. Each sequence is routed
    separately, so that the mesh can change a token's route only through rounding.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        width, experts = (config.embed,), (config.experts,)
        self.router = _projection(  # in float32, as in Fedus et al. 2021, section 2.4
            width, experts, ("embed",), ("router",), INIT_STDDEV, jnp.float32, rngs, use_bias=False
        )
        self.experts = Mlp(config, dtype, rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps [B, T, D] to [B, T, D], and returns the balance loss of each sequence, float32 [B]."""
        sharding = out_sharding((*x.shape[:2], self.config.experts), "batch", "seq", "router")
        probabilities = shard(
            jax.nn.softmax(self.router(x, out_sharding=sharding)),
            *("batch", "keys", "router"),
            gradient=("batch", "seq", "router"),
            name="blocks.mlp.choices",
        )
        routing = route(probabilities, self.config.experts_per_token, self.config.capacity(x.shape[1]))
        dispatch, combine = (
            shard(slots.astype(x.dtype), "batch", "seq", "router", "capacity", name=f"blocks.mlp.{name}")
            for name, slots in (("dispatch", routing.dispatch), ("combine", routing.combine))
        )
        full_axes, split_axes, expert_axes = (
            (*dims, "activation_embed")
            for dims in (
                ("router", "batch", None),
                ("router", "batch", "capacity"),
                ("experts", "expert_batch", "capacity"),
            )
        )
        shape = self.config.experts, len(x), dispatch.shape[-1], x.shape[-1]
        sent = jnp.einsum("BTEC,BTD->EBCD", dispatch, x, out_sharding=out_sharding(shape, *split_axes))
        sent = shard(sent, *split_axes, gradient=full_axes, name="blocks.mlp.sent")
        received = shard(sent, *expert_axes, name="blocks.mlp.received")
        computed = shard(self.experts(received), *expert_axes, name="blocks.mlp.computed")
        returned = shard(computed, *full_axes, gradient=split_axes, name="blocks.mlp.returned")
        sharding = out_sharding(x.shape, "batch", "seq", "activation_embed")
        return jnp.einsum("BTEC,EBCD->BTD", combine, returned, out_sharding=sharding), routing.balance


class Block(nnx.Module):
    """A pre-LayerNorm transformer block: attention, then an MLP or a mixture of experts."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, kernels: AttentionKernels, rngs: nnx.Rngs) -> None:
        self.attention_norm = layer_norm(config, dtype, rngs)
        self.attention = Attention(config, dtype, kernels, rngs)
        self.mlp_norm = layer_norm(config, dtype, rngs)
        self.mlp = (Mixture if config.experts else Mlp)(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)
        self.splits_norms = config.remat and not config.experts
        """Whether each device computes norms for the part of the width that remat saves."""

    def __call__(self, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Maps the residual stream [B, T, D] to [B, T, D]; the balance loss [B] is None without experts.

        `examples` [B] are the indices of the examples in the global batch. Without a key there is no dropout.
        """
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            x = self._add(
                x,
                self.attention(apply_norm(self.attention_norm, x, "blocks.attention_norm", self.splits_norms)),
                attention_key,
                examples,
                "attention",
            )
        with jax.named_scope("mlp"):
            part = hinted(x, "batch", "seq", "saved_embed") if self.splits_norms else x
            branch = self.mlp(apply_norm(self.mlp_norm, part, "blocks.mlp_norm", self.splits_norms))
            branch, balance = branch if isinstance(branch, tuple) else (branch, None)
            return self._add(x, branch, mlp_key, examples, "mlp"), balance

    def _add(self, x: jax.Array, branch: jax.Array, key: jax.Array | None, examples: jax.Array, name: str) -> jax.Array:
        branch = shard(branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.branch")
        branch = apply_dropout(self.dropout, branch, key, examples)
        return shard(x + branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.residual")


def _is_elementwise(path: PathParts, _: object) -> bool:
    """Tells biases and scales from kernels: the latter meet activations in products that have an `out_sharding`."""
    return path[-1] in ("bias", "scale")


def with_gathered_biases(module: Module) -> Module:
    """Returns the module with its biases and scales gathered as activations need them.

    Does nothing under automatic axis types, where the compiler gathers them.
    """

    def gather(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["out_sharding"]
        return variable.replace(gathered(variable.get_value(), axes))

    graph, parameters, rest = nnx.split(module, _is_elementwise, ...)
    parameters = jax.tree.map(gather, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    with nnx.use_eager_sharding(False):
        return nnx.merge(graph, parameters, rest)


def apply_norm(norm: nnx.LayerNorm, x: jax.Array, name: str, is_split: bool = False) -> jax.Array:
    """Applies `norm` to [B, T, D] and shards the result; `name` is the activation's.

    `is_split`: let each device compute the part of the width that remat saves, and gather the result.
    """
    x = norm(x)
    if is_split:
        x = hinted(x, "batch", "seq", "saved_embed")
    return shard(x, "batch", "seq", "activation_embed", name=name)


def apply_dropout(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
    """Applies dropout to `x` [B, …] with one key per example, derived from its index in the global batch.

    So `x` may be any part of the batch, whose indices are `examples` [B]. Without a key nothing is dropped.
    """
    if key is None:
        return x
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, examples)
    return jax.vmap(lambda x, key: dropout(x, rngs=key))(x, keys)


def example_indices(x: jax.Array) -> jax.Array:
    """Returns the indices [B] of the examples of a full batch [B, …]."""
    return constrain(jnp.arange(len(x)), "batch")
