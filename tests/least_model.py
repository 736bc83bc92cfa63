"""The least model that trains on text, for tests of what no model matters to: it compiles in a fraction of the time."""

import jax
from flax import nnx


class LeastModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.normal(0.02), ("vocab", "embed"))
        self.token = nnx.Embed(256, 16, embedding_init=init, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.token.attend(self.token(tokens))  # [B, T, V]
