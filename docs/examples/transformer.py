"""A small language model of blocks as tutorials write them, on the run's text; the blocks want to be told that they
train, which is what `loss` is for. `shardtui --model docs/examples/transformer.py:language_model --preset fsdp-tp2`"""

from typing import Any

import jax
import optax
from flax import nnx


def _named(init: Any, *axes: str) -> Any:
    return nnx.with_partitioning(init, axes)


class TransformerBlock(nnx.Module):
    """Attention and an MLP, each behind a LayerNorm and with dropout."""

    def __init__(self, embed_dim: int, num_heads: int, ff_dim: int, dropout_rate: float, *, rngs: nnx.Rngs) -> None:
        kernel, zeros, ones = (
            nnx.initializers.xavier_uniform(),
            nnx.initializers.zeros_init(),
            nnx.initializers.ones_init(),
        )
        norm = {"epsilon": 1e-6, "scale_init": _named(ones, "embed"), "bias_init": _named(zeros, "embed")}
        self.layer_norm1 = nnx.LayerNorm(embed_dim, **norm, rngs=rngs)
        self.mha = nnx.MultiHeadAttention(
            num_heads=num_heads,
            in_features=embed_dim,
            kernel_init=_named(kernel, "embed", "heads", "head_dim"),
            bias_init=_named(zeros, "heads", "head_dim"),
            out_kernel_init=_named(kernel, "heads", "head_dim", "embed"),
            out_bias_init=_named(zeros, "embed"),
            decode=False,
            rngs=rngs,
        )
        self.dropout1 = nnx.Dropout(dropout_rate, rngs=rngs)
        self.layer_norm2 = nnx.LayerNorm(embed_dim, **norm, rngs=rngs)
        self.linear1 = nnx.Linear(
            embed_dim, ff_dim, kernel_init=_named(kernel, "embed", "mlp"), bias_init=_named(zeros, "mlp"), rngs=rngs
        )
        self.linear2 = nnx.Linear(
            ff_dim, embed_dim, kernel_init=_named(kernel, "mlp", "embed"), bias_init=_named(zeros, "embed"), rngs=rngs
        )
        self.dropout2 = nnx.Dropout(dropout_rate, rngs=rngs)

    def __call__(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        mask = nnx.make_causal_mask(inputs[..., 0])
        attended = self.mha(self.layer_norm1(inputs), mask=mask)
        x = inputs + self.dropout1(attended, deterministic=not training)
        hidden = nnx.gelu(self.linear1(self.layer_norm2(x)))
        return x + self.dropout2(self.linear2(hidden), deterministic=not training)


class LanguageModel(nnx.Module):
    def __init__(self, vocab: int, seq_len: int, width: int, heads: int, blocks: int, dropout: float, rngs: nnx.Rngs):
        table = nnx.initializers.normal(0.02)
        self.token = nnx.Embed(vocab, width, embedding_init=_named(table, "vocab", "embed"), rngs=rngs)
        self.position = nnx.Embed(seq_len, width, embedding_init=_named(table, "positions", "embed"), rngs=rngs)
        self.blocks = nnx.List(TransformerBlock(width, heads, 4 * width, dropout, rngs=rngs) for _ in range(blocks))
        self.output = nnx.Linear(width, vocab, kernel_init=_named(table, "embed", "vocab"), use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array, training: bool = False) -> jax.Array:
        x = self.token(tokens) + self.position.embedding[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, training)
        return self.output(x)


def language_model(
    seq_len: int, width: int = 64, heads: int = 8, blocks: int = 2, dropout: float = 0.1, *, rngs: nnx.Rngs
) -> LanguageModel:
    return LanguageModel(256, seq_len, width, heads, blocks, dropout, rngs)


def loss(model: LanguageModel, batch: Any) -> jax.Array:
    logits = model(batch.inputs, training=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets).mean()
