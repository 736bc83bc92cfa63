"""A GPT-2 decoder in Flax NNX: pre-LayerNorm blocks, stacked and scanned, with logical axes on every array.

Dims: B batch, T sequence, D embed, N heads, H head_dim, F mlp, E experts, C capacity, V vocab, L layers.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import PathParts
from jax.typing import DTypeLike

from ..parallel.constraints import (
    active_pipeline,
    constrain,
    gathered,
    left_to_compiler,
    observe,
    out_sharding,
    shard,
    token_groups,
)
from ..spec.config import ModelConfig
from .pipeline import spread, through_stages
from .routing import route

Module = TypeVar("Module", bound=nnx.Module)
BALANCE = 0.01
"""Weight of the balance loss in what is minimised: α of Fedus et al. 2021, "Switch Transformers", section 2.2."""
INIT_STDDEV = 0.02
"""Radford et al. 2019; projections into the residual stream are scaled by 1/√(2·layers) as there."""


def _layer_norm(config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.LayerNorm:
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
        self.attention_norm = _layer_norm(config, dtype, rngs)
        self.attention = Attention(config, dtype, rngs)
        self.mlp_norm = _layer_norm(config, dtype, rngs)
        self.mlp = (Mixture if config.experts else Mlp)(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The residual stream [B, T, D], and of a mixture of experts the balance loss [B]. `examples`: numbers [B]."""
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            x = self._add(
                x,
                self.attention(_normed(self.attention_norm, x, "blocks.attention_norm")),
                attention_key,
                examples,
                "attention",
            )
        with jax.named_scope("mlp"):
            branch = self.mlp(_normed(self.mlp_norm, x, "blocks.mlp_norm"))
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


def _normed(norm: nnx.LayerNorm, x: jax.Array, name: str) -> jax.Array:
    return shard(norm(x), "batch", "seq", "activation_embed", name=name)


def dropped(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
    """What is dropped of an example follows from its number in the batch [B], whatever part of the batch `x` is."""
    if key is None:
        return x
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, examples)
    return jax.vmap(lambda x, key: dropout(x, rngs=key))(x, keys)


class Gpt(nnx.Module):
    """Tokens [B, T] to logits [B, T, V] over `vocab_rows`, with tied token table as in GPT-2.

    Dropout falls on the embedding and on each residual branch when a key is given.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        table = nnx.initializers.normal(INIT_STDDEV)
        self.token = nnx.Embed(
            config.vocab_rows,
            config.embed,
            dtype=dtype,
            embedding_init=nnx.with_partitioning(table, ("vocab", "embed")),
            rngs=rngs,
        )
        self.position = nnx.Embed(
            config.context,
            config.embed,
            dtype=dtype,
            embedding_init=nnx.with_partitioning(table, ("positions", "embed")),
            rngs=rngs,
        )

        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, dtype, rngs)

        self.blocks = stack(rngs)
        self.norm = _layer_norm(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.logits_and_balance(tokens, key)[0]

    def logits_and_balance(self, tokens: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Besides the logits the balance loss of mixtures of experts, float32 []: the sum over the blocks, the mean
        over the sequences."""
        table = _spread(self.token, "vocab", name="token.table")  # [G, S, V, D]
        positions = _spread(self.position, "positions", name="position.table")  # [G, S, positions, D]
        embedding_key, blocks_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("embed"):
            rows = _looked_up(table, _grouped(tokens, table))  # [G, S, B ÷ G, T ÷ S, D]
            places = _places(tokens.shape[1], positions)
            x = _ungrouped(rows + _looked_up(positions, places)[:, :, None], "activation_embed")
            x = shard(x, "batch", "seq", "activation_embed", name="embedding")
            x = dropped(self.dropout, x, embedding_key, _examples(x))
        with jax.named_scope("blocks"):
            keys = None if blocks_key is None else jax.random.split(blocks_key, self.config.layers)
            x, balance = self._through_blocks(x, keys)
        with jax.named_scope("logits"):
            x = _normed(as_used(self.norm), x, "norm")
            x = _grouped(x, table, "activation_embed")
            shape = *x.shape[:-1], table.shape[2]
            lies = out_sharding(shape, "batch", "seq", None, None, "vocab")
            logits = jnp.einsum("GSBTD,GSVD->GSBTV", x, table, out_sharding=lies).astype(jnp.float32)
            logits = _ungrouped(logits, "vocab")  # [B, T, V]
            logits = shard(self._mask_padding(logits), "batch", "seq", "vocab", name="logits")
        return logits, None if balance is None else balance.sum(axis=0).mean()

    def _through_blocks(self, x: jax.Array, keys: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """The residual stream, and of mixtures of experts their balance losses [L, B]: stages have none of these."""
        pipeline = active_pipeline()
        if pipeline is None:
            return self._scanned(self.blocks, x, keys, _examples(x))
        graph, blocks = nnx.split(self.blocks)

        def stage(layers: tuple[nnx.State, jax.Array | None], x: jax.Array, examples: jax.Array) -> jax.Array:
            blocks, keys = layers
            with nnx.use_eager_sharding(False):
                return self._scanned(nnx.merge(graph, blocks), x, keys, examples)[0]

        def in_stages(variable: nnx.Variable) -> nnx.Variable:
            _, *axes = variable.get_metadata()["out_sharding"]
            return variable.replace(spread(variable.get_value(), pipeline, *axes))

        blocks = jax.tree.map(in_stages, blocks, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
        layers = blocks, None if keys is None else spread(keys, pipeline)
        return through_stages(pipeline, stage, layers, x), None

    def _scanned(
        self, blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        def through(
            block: Block, x: jax.Array, key: jax.Array | None, examples: jax.Array
        ) -> tuple[jax.Array, jax.Array | None]:
            return as_used(block)(x, key, examples)

        body = nnx.remat(through) if self.config.remat else through
        scan = nnx.scan(
            body,
            in_axes=(0, nnx.Carry, None if keys is None else 0, None),
            out_axes=(nnx.Carry, 0),
            transform_metadata={nnx.PARTITION_NAME: "layers"},
        )
        return scan(blocks, x, keys, examples)

    def _mask_padding(self, logits: jax.Array) -> jax.Array:
        if self.config.vocab_rows == self.config.vocab:
            return logits
        row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
        return jnp.where(row < self.config.vocab, logits, -jnp.inf)


def _examples(x: jax.Array) -> jax.Array:
    """The numbers [B] of a whole batch [B, …]."""
    return constrain(jnp.arange(len(x)), "batch")


def _spread(embed: nnx.Embed, rows: str, name: str) -> jax.Array:
    """A table as lookups need it, [G, S, rows, D]: whole along its width, and a copy for each group of tokens, which is
    a part of the batch and a part of the sequence.

    Devices hold no more than one copy for it. But the gradients of all uses of the table are summed inside a group
    before the groups are, so that they cross the mesh once and not once for each use.
    """
    table = embed.embedding[...].astype(embed.dtype)
    shape, axes = (*token_groups(), *table.shape), ("batch", "seq", rows, "activation_embed")
    copies = jnp.broadcast_to(gathered(table, (rows, "embed")), shape, out_sharding=out_sharding(shape, *axes))
    return shard(copies, *axes, name=name)


def _grouped(x: jax.Array, spread: jax.Array, *rest_axes: str) -> jax.Array:
    """[B, T, …] as [G, S, B ÷ G, T ÷ S, …], to meet what `_spread` gives."""
    groups, parts = spread.shape[:2]
    batch, seq, *rest = x.shape
    shape = groups, batch // groups, parts, seq // parts, *rest
    return x.reshape(shape, out_sharding=out_sharding(shape, "batch", None, "seq", None, *rest_axes)).swapaxes(1, 2)


def _ungrouped(x: jax.Array, *rest_axes: str) -> jax.Array:
    """[G, S, B ÷ G, T ÷ S, …] as [B, T, …]."""
    groups, parts, batch, seq, *rest = x.shape
    shape = groups * batch, parts * seq, *rest
    return x.swapaxes(1, 2).reshape(shape, out_sharding=out_sharding(shape, "batch", "seq", *rest_axes))


def _places(seq: int, spread: jax.Array) -> jax.Array:
    """The positions that each group reads, [G, S, T ÷ S]."""
    groups, parts = spread.shape[:2]
    places = jnp.broadcast_to(jnp.arange(seq).reshape(parts, -1), (groups, parts, seq // parts))
    return constrain(places, "batch", "seq", None)


def _looked_up(spread: jax.Array, rows: jax.Array) -> jax.Array:
    """Rows [G, S, …] of a table that was spread, as [G, S, …, D]."""
    lies = out_sharding((*rows.shape[2:], spread.shape[-1]), *[None] * (rows.ndim - 2), "activation_embed")
    return jax.vmap(jax.vmap(lambda table, rows: table.at[rows].get(out_sharding=lies)))(spread, rows)


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy in nats per token. Logits [B, T, V], targets [B, T].

    The target's logit is picked by a comparison, not a gather: that needs no gather of logits split over `vocab`.
    """
    row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    chosen = jnp.sum(jnp.where(row == targets[..., None], logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def compute_dtype(config: ModelConfig, platform: str) -> str:
    return ("float32" if platform == "cpu" else "bfloat16") if config.dtype == "auto" else config.dtype


def parameter_count(config: ModelConfig) -> int:
    """Trainable elements, without the padding rows of the token table.

    (V + context)·D, per layer 4·D² + 4·D (attention), 2·D·F + F + D (MLP, or each expert), D·E (router of E experts),
    4·D (norms), and 2·D for the last norm.
    """
    d = config.embed
    layer = 4 * d * d + 4 * d + (config.experts or 1) * _mlp_parameters(config) + d * config.experts + 4 * d
    return (config.vocab + config.context) * d + config.layers * layer + 2 * d


def active_parameter_count(config: ModelConfig) -> int:
    """Those of `parameter_count` that a token passes through: of the experts as many as it is sent to."""
    idle = config.experts - config.experts_per_token if config.experts else 0
    return parameter_count(config) - config.layers * idle * _mlp_parameters(config)


def _mlp_parameters(config: ModelConfig) -> int:
    return 2 * config.embed * config.mlp + config.mlp + config.embed


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward and backward: 6 a parameter that multiplies, and 12·L·D·T for attention (PaLM, appendix B).

    The position table and the lookup of the token table multiply nothing; the tied output layer does. Of experts those
    count that a token is sent to, whether they have room for it or not.
    """
    multiplying = active_parameter_count(config) - config.context * config.embed
    return 6.0 * multiplying + 12.0 * config.layers * config.embed * seq_len
