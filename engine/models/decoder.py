"""A GPT-2 decoder in Flax NNX: pre-LayerNorm blocks, stacked and scanned, with logical axes on every array.

Dims: B batch, T sequence, D embed, N heads, H head_dim, F mlp, E experts, C capacity, V vocab, L layers.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ..parallel.constraints import (
    active_pipeline,
    constrain,
    gathered,
    out_sharding,
    shard,
    token_groups,
)
from ..spec.config import ModelConfig
from .blocks import INIT_STDDEV, Block, as_used, dropped, example_numbers, layer_norm, normed
from .pipeline import spread, through_stages

BALANCE = 0.01
"""Weight of the balance loss in what is minimised: α of Fedus et al. 2021, "Switch Transformers", section 2.2."""


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
        self.norm = layer_norm(config, dtype, rngs)
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
            x = dropped(self.dropout, x, embedding_key, example_numbers(x))
        with jax.named_scope("blocks"):
            keys = None if blocks_key is None else jax.random.split(blocks_key, self.config.layers)
            x, balance = self._through_blocks(x, keys)
        with jax.named_scope("logits"):
            x = normed(as_used(self.norm), x, "norm")
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
            return self._scanned(self.blocks, x, keys, example_numbers(x))
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
