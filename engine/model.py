"""A GPT-2 decoder in Flax NNX: pre-LayerNorm blocks, stacked and scanned, with logical axes on every array.

Dims: B batch, T sequence, D embed, N heads, H head_dim, F mlp, V vocab, L layers.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .config import ModelConfig
from .pipeline import spread, through_stages
from .sharding import active_pipeline, batch_groups, observe, shard

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
) -> nnx.LinearGeneral:
    """A linear map from the last dims of its input, named `axes_in`, to new ones named `axes_out`."""
    return nnx.LinearGeneral(
        sizes_in,
        sizes_out,
        axis=tuple(range(-len(sizes_in), 0)),
        dtype=dtype,
        kernel_init=nnx.with_partitioning(nnx.initializers.normal(stddev), axes_in + axes_out),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), axes_out),
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
        qkv = shard(self.qkv(x), "batch", "seq", "qkv", "heads", "head_dim", name="blocks.attention.qkv")
        mixed = jax.nn.dot_product_attention(*jnp.unstack(qkv, axis=2), is_causal=True)  # [B, T, N, H]
        return self.out(shard(mixed, "batch", "seq", "heads", "head_dim", name="blocks.attention.mixed"))


class Mlp(nnx.Module):
    """Two linear maps with a GELU (tanh form, as in GPT-2) between."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, hidden = (config.embed,), (config.mlp,)
        stddev = INIT_STDDEV / (2 * config.layers) ** 0.5
        self.up = _projection(width, hidden, ("embed",), ("mlp",), INIT_STDDEV, dtype, rngs)
        self.down = _projection(hidden, width, ("mlp",), ("embed",), stddev, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = observe(self.up(x), "batch", "seq", "mlp", name="blocks.mlp.up")
        return self.down(shard(nnx.gelu(hidden), "batch", "seq", "mlp", name="blocks.mlp.hidden"))


class Block(nnx.Module):
    """The residual stream [B, T, D] to what it is behind the block. `examples` [B] are their numbers in the batch."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.attention_norm = _layer_norm(config, dtype, rngs)
        self.attention = Attention(config, dtype, rngs)
        self.mlp_norm = _layer_norm(config, dtype, rngs)
        self.mlp = Mlp(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            x = self._add(
                x,
                self.attention(_normed(self.attention_norm, x, "attention_norm")),
                attention_key,
                examples,
                "attention",
            )
        with jax.named_scope("mlp"):
            return self._add(x, self.mlp(_normed(self.mlp_norm, x, "mlp_norm")), mlp_key, examples, "mlp")

    def _add(self, x: jax.Array, branch: jax.Array, key: jax.Array | None, examples: jax.Array, name: str) -> jax.Array:
        branch = shard(branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.branch")
        branch = dropped(self.dropout, branch, key, examples)
        return shard(x + branch, "batch", "seq", "activation_embed", name=f"blocks.{name}.residual")


def _normed(norm: nnx.LayerNorm, x: jax.Array, name: str) -> jax.Array:
    return shard(norm(x), "batch", "seq", "activation_embed", name=f"blocks.{name}")


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
        table = _spread(self.token, "vocab", name="token.table")  # [G, V, D]
        positions = _spread(self.position, "positions", name="position.table")[:, : tokens.shape[1]]  # [G, T, D]
        embedding_key, blocks_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("embed"):
            x = jax.vmap(jnp.take, in_axes=(0, 0, None))(table, _grouped(tokens, table), 0) + positions[:, None]
            x = x.reshape(*tokens.shape, -1)  # [B, T, D]
            x = shard(x, "batch", "seq", "activation_embed", name="embedding")
            x = dropped(self.dropout, x, embedding_key, jnp.arange(len(tokens)))
        with jax.named_scope("blocks"):
            keys = None if blocks_key is None else jax.random.split(blocks_key, self.config.layers)
            x = self._through_blocks(x, keys)
        with jax.named_scope("logits"):
            x = shard(self.norm(x), "batch", "seq", "activation_embed", name="norm")
            logits = jnp.einsum("GBTD,GVD->GBTV", _grouped(x, table), table).astype(jnp.float32)
            logits = logits.reshape(*tokens.shape, -1)  # [B, T, V]
            return shard(self._mask_padding(logits), "batch", "seq", "vocab", name="logits")

    def _through_blocks(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        pipeline = active_pipeline()
        if pipeline is None:
            return self._scanned(self.blocks, x, keys, jnp.arange(len(x)))
        graph, blocks = nnx.split(self.blocks)

        def stage(layers: tuple[nnx.State, jax.Array | None], x: jax.Array, examples: jax.Array) -> jax.Array:
            blocks, keys = layers
            with nnx.use_eager_sharding(False):
                return self._scanned(nnx.merge(graph, blocks), x, keys, examples)

        def in_stages(variable: nnx.Variable) -> nnx.Variable:
            _, *axes = variable.get_metadata()["out_sharding"]
            return variable.replace(spread(variable.get_value(), pipeline, *axes))

        blocks = jax.tree.map(in_stages, blocks, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
        return through_stages(pipeline, stage, (blocks, None if keys is None else spread(keys, pipeline)), x)

    def _scanned(self, blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array) -> jax.Array:
        def through(block: Block, x: jax.Array, key: jax.Array | None, examples: jax.Array) -> jax.Array:
            return block(x, key, examples)

        body = nnx.remat(through) if self.config.remat else through
        scan = nnx.scan(
            body,
            in_axes=(0, nnx.Carry, None if keys is None else 0, None),
            out_axes=nnx.Carry,
            transform_metadata={nnx.PARTITION_NAME: "layers"},
        )
        return scan(blocks, x, keys, examples)

    def _mask_padding(self, logits: jax.Array) -> jax.Array:
        if self.config.vocab_rows == self.config.vocab:
            return logits
        row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
        return jnp.where(row < self.config.vocab, logits, -jnp.inf)


def _spread(embed: nnx.Embed, rows: str, name: str) -> jax.Array:
    """A table as lookups need it, [G, rows, D]: whole along its width, and a copy for each group of the batch.

    Devices hold no more than one copy for it. But the gradients of all uses of the table are summed inside a group
    before the groups are, so that they cross the mesh once and not once for each use.
    """
    table = embed.embedding[...].astype(embed.dtype)
    copies = jnp.broadcast_to(table, (batch_groups(), *table.shape))
    return shard(copies, "batch", rows, "activation_embed", name=name)


def _grouped(x: jax.Array, spread: jax.Array) -> jax.Array:
    """[B, …] as [G, B ÷ G, …], to meet what `_spread` gives."""
    return x.reshape(len(spread), -1, *x.shape[1:])


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

    (V + context)·D, per layer 4·D² + 4·D (attention), 2·D·F + F + D (MLP), 4·D (norms), and 2·D for the last norm.
    """
    d, f = config.embed, config.mlp
    layer = 4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d
    return (config.vocab + config.context) * d + config.layers * layer + 2 * d


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward and backward: 6 a parameter that multiplies, and 12·L·D·T for attention (PaLM, appendix B).

    The position table and the lookup of the token table multiply nothing; the tied output layer does.
    """
    multiplying = parameter_count(config) - config.context * config.embed
    return 6.0 * multiplying + 12.0 * config.layers * config.embed * seq_len
