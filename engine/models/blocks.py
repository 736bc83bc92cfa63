"""The decoder's blocks: MLP, mixture of experts, and the residual connections around their branches."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import PathParts
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from ..parallel.constraints import constrain, gathered, hinted, observe, out_sharding, shard
from ..spec.model_config import ModelConfig
from .attention import Attention
from .experts import Choices, Kernels, choose, ragged_experts, slots_of, weights_of_all
from .layers import INIT_STDDEV, Norm, apply_norm, embed_norm, projection
from .sizes import AttentionKernels

Module = TypeVar("Module", bound=nnx.Module)
_examples: ContextVar[jax.Array | None] = ContextVar("examples of a micro-batch", default=None)


class Mlp(nnx.Module):
    """Two linear maps with a GELU (tanh form, as in GPT-2) in between, or with a product of a gate and the first one.
    With experts, it holds one such MLP per expert."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, hidden = (config.embed,), (config.mlp,)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        bias = config.biases == "all"
        into = partial(projection, width, hidden, ("embed",), ("mlp",), INIT_STDDEV, dtype, rngs, config.experts, bias)
        self.up = into()
        self.down = projection(hidden, width, ("mlp",), ("embed",), stddev, dtype, rngs, config.experts, bias)
        self.gate = into() if config.is_gated else None
        self.activation = nnx.silu if config.activation == "swiglu" else nnx.gelu
        self._tokens = ("experts", "expert_batch", "capacity") if config.experts else ("batch", "seq")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D], with experts [E, B, C, D] to [E, B, C, D]."""
        sharding = out_sharding((*x.shape[:-1], *self.up.out_features), *self._tokens, "mlp")
        hidden = observe(self.up(x, out_sharding=sharding), *self._tokens, "mlp", name="blocks.mlp.up")
        hidden = checkpoint_name(hidden, "mlpwi")
        if self.gate is None:
            hidden = self.activation(hidden)
        else:
            gate = observe(self.gate(x, out_sharding=sharding), *self._tokens, "mlp", name="blocks.mlp.gate")
            gate, hidden = jax.lax.optimization_barrier((checkpoint_name(gate, "mlpwi"), hidden))
            hidden = jax.lax.optimization_barrier(self.activation(gate) * hidden)
        hidden = shard(hidden, *self._tokens, "mlp", name="blocks.mlp.hidden")
        sharding = out_sharding(x.shape, *self._tokens, "activation_embed")
        return checkpoint_name(self.down(hidden, out_sharding=sharding), "mlpwo")


class Mixture(nnx.Module):
    """A mixture of experts: a router sends each token to its most probable experts (Lepikhin et al. 2020, "GShard";
    Fedus et al. 2021, "Switch Transformers"), which take a limited number of tokens per sequence. Each sequence is
    routed separately, so that the mesh can change a token's route only through rounding. Without a limit (Jiang et al.
    2024, "Mixtral of Experts") an expert computes its tokens by ragged products, or all tokens by dense ones, which
    take `experts` ÷ `experts_per_token` times the FLOPs."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        width, experts = (config.embed,), (config.experts,)
        self.router = projection(  # in float32, as in Fedus et al. 2021, section 2.4
            width, experts, ("embed",), ("router",), INIT_STDDEV, jnp.float32, rngs, use_bias=False
        )
        self.experts = Mlp(config, dtype, rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps [B, T, D] to [B, T, D], and returns the balance loss of each sequence, float32 [B]."""
        sharding = out_sharding((*x.shape[:2], self.config.experts), "batch", "seq", "router")
        logits = observe(self.router(x, out_sharding=sharding), "batch", "seq", "router", name="blocks.mlp.router")
        probabilities = shard(
            jax.nn.softmax(logits),
            *("batch", "keys", "router"),
            gradient=("batch", "seq", "router"),
            name="blocks.mlp.choices",
        )
        choices = choose(probabilities, self.config.experts_per_token)
        if self.config.capacity_factor:
            return self._by_slots(x, choices), choices.balance
        apply = self._by_chosen if self.config.expert_matmul == "ragged" else self._by_all
        return apply(x, choices), choices.balance

    def _by_slots(self, x: jax.Array, choices: Choices) -> jax.Array:
        """Has each expert compute the tokens that occupy its slots."""
        found = zip(("dispatch", "combine"), slots_of(choices, self.config.capacity(x.shape[1])), strict=True)
        dispatch, combine = (
            shard(slots.astype(x.dtype), "batch", "seq", "router", "capacity", name=f"blocks.mlp.{name}")
            for name, slots in found
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
        return jnp.einsum("BTEC,EBCD->BTD", combine, returned, out_sharding=sharding)

    def _by_chosen(self, x: jax.Array, choices: Choices) -> jax.Array:
        chosen, experts = jnp.argmax(choices.masks, axis=-1), self.experts
        gate = experts.gate and experts.gate.kernel[...].astype(x.dtype)
        kernels = Kernels(experts.up.kernel[...].astype(x.dtype), gate, experts.down.kernel[...].astype(x.dtype))
        return ragged_experts(x, chosen, choices.weights.astype(x.dtype), kernels, experts.activation)

    def _by_all(self, x: jax.Array, choices: Choices) -> jax.Array:
        """Has all experts compute all tokens, with weight 0 for tokens not routed to them."""
        weights = weights_of_all(choices).astype(x.dtype)
        weights = shard(weights, "batch", "seq", "router", name="blocks.mlp.combine")  # [B, T, E]
        sent_axes, expert_axes = (
            (*dims, "capacity", "activation_embed") for dims in (("router", "batch"), ("experts", "expert_batch"))
        )
        shape = self.config.experts, *x.shape
        sent = shard(
            jnp.broadcast_to(x, shape, out_sharding=out_sharding(shape, *sent_axes)), *sent_axes, name="blocks.mlp.sent"
        )
        received = shard(sent, *expert_axes, name="blocks.mlp.received")
        computed = shard(self.experts(received), *expert_axes, name="blocks.mlp.computed")
        returned = shard(computed, *sent_axes, name="blocks.mlp.returned")  # [E, B, T, D]
        sharding = out_sharding(x.shape, "batch", "seq", "activation_embed")
        return jnp.einsum("BTE,EBTD->BTD", weights, returned, out_sharding=sharding)


class Block(nnx.Module):
    """A transformer block: attention, then an MLP or a mixture of experts, with norms before or after them, or both."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, kernels: AttentionKernels, rngs: nnx.Rngs) -> None:
        has_pre, has_post = config.norm_places != "post", config.norm_places != "pre"
        self.attention_norm = embed_norm(config, dtype, rngs) if has_pre else None
        self.attention = Attention(config, dtype, kernels, rngs)
        self.attention_post_norm = embed_norm(config, dtype, rngs) if has_post else None
        self.mlp_norm = embed_norm(config, dtype, rngs) if has_pre else None
        self.mlp = (Mixture if config.experts else Mlp)(config, dtype, rngs)
        self.mlp_post_norm = embed_norm(config, dtype, rngs) if has_post else None
        self.dropout = nnx.Dropout(config.dropout)
        self.splits_norms = bool(config.remat) and not config.experts and not has_post
        """Whether each device computes norms for the part of the width that remat saves."""

    def __call__(
        self, x: jax.Array, key: jax.Array | None, examples: jax.Array, is_local: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the residual stream [B, T, D] after the block, and the balance loss [B], None without experts.
        `examples` [B]: indices in the global batch. Without a key there is no dropout."""
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            branch = self.attention(self._normed(self.attention_norm, x, "attention_norm"), is_local)
            branch = self._normed(self.attention_post_norm, branch, "attention_post_norm")
            x = self._add(x, branch, attention_key, examples, "attention")
        with jax.named_scope("mlp"):
            part = hinted(x, "batch", "seq", "saved_embed") if self.splits_norms else x
            branch = self.mlp(self._normed(self.mlp_norm, part, "mlp_norm"))
            branch, balance = branch if isinstance(branch, tuple) else (branch, None)
            branch = self._normed(self.mlp_post_norm, branch, "mlp_post_norm")
            return self._add(x, branch, mlp_key, examples, "mlp"), balance

    def _normed(self, norm: Norm | None, x: jax.Array, name: str) -> jax.Array:
        return x if norm is None else apply_norm(norm, x, f"blocks.{name}", self.splits_norms)

    def _add(self, x: jax.Array, branch: jax.Array, key: jax.Array | None, examples: jax.Array, name: str) -> jax.Array:
        branch = shard(branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.branch")
        branch = apply_dropout(self.dropout, branch, key, examples)
        return shard(x + branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.residual")


def _is_elementwise(path: PathParts, _: object) -> bool:
    """Tells biases and scales from kernels: the latter meet activations in products that have an `out_sharding`."""
    return path[-1] in ("bias", "scale")


def with_gathered_biases(module: Module) -> Module:
    """Returns the module with biases and scales gathered as activations need them, under explicit axis types."""

    def gather(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["out_sharding"]
        return variable.replace(gathered(variable.get_value(), axes))

    graph, parameters, rest = nnx.split(module, _is_elementwise, ...)
    parameters = jax.tree.map(gather, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    with nnx.use_eager_sharding(False):
        return nnx.merge(graph, parameters, rest)


def apply_dropout(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
    """Applies dropout to any part [b, …] of the batch, with one key per example, from its index in the global batch.
    Without a key nothing is dropped."""
    if key is None:
        return x
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, examples)
    return jax.vmap(lambda x, key: dropout(x, rngs=key))(x, keys)


@contextlib.contextmanager
def micro_batch(examples: jax.Array) -> Iterator[None]:
    """Traces the model for a part of the global batch with indices `examples` [b]."""
    token = _examples.set(examples)
    try:
        yield
    finally:
        _examples.reset(token)


def example_indices(x: jax.Array) -> jax.Array:
    """Returns the indices [B] in the global batch: all, or of a micro-batch."""
    examples = _examples.get()
    return constrain(jnp.arange(len(x)) if examples is None else examples, "batch")
