"""A decoder of grouped-query attention, rotary positions and gated MLPs in Flax NNX, whose parameters and activations
are split by tuples of mesh axes: the way Qwen3 is written for it. Its loss and gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

B, T, V, D, N, K, H, F, LAYERS = 8, 16, 128, 32, 4, 2, 8, 64, 2
Spec = tuple[str | None, ...]


def shard(x: jax.Array, spec: Spec) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, P(*spec))


class Einsum(nnx.Module):
    def __init__(self, equation: str, shape: tuple[int, ...], spec: Spec, rngs: nnx.Rngs) -> None:
        self.equation, self.spec = equation, spec
        self.w = nnx.Param(nnx.initializers.normal()(rngs.params(), shape))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.einsum(self.equation, x, self.w[...])


class RMSNorm(nnx.Module):
    def __init__(self) -> None:
        self.spec: Spec = (None,)
        self.w = nnx.Param(jnp.ones(D))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w[...] * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array) -> jax.Array:  # [B, T, N, H]
    angles = jnp.arange(T)[:, None] / 10_000 ** (jnp.arange(H // 2) / (H // 2))  # [T, H/2]
    sin, cos = jnp.sin(angles)[None, :, None], jnp.cos(angles)[None, :, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.q = Einsum("BTD,DNH->BTNH", (D, N, H), (None, "model", None), rngs)
        self.k = Einsum("BTD,DKH->BTKH", (D, K, H), (None, "model", None), rngs)
        self.v = Einsum("BTD,DKH->BTKH", (D, K, H), (None, "model", None), rngs)
        self.o = Einsum("BTNH,NHD->BTD", (N, H, D), ("model", None, None), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads: Spec = ("data", None, "model", None)
        q, k, v = (shard(project(x), heads) for project in (self.q, self.k, self.v))
        q = rotate(q).reshape(B, T, K, N // K, H)
        scores = jnp.einsum("BTKGH,BSKH->BKGTS", q, rotate(k)) / H**0.5
        scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, -1e30)
        mixed = jnp.einsum("BKGTS,BSKH->BTKGH", jax.nn.softmax(scores), v).reshape(B, T, N, H)
        return shard(self.o(checkpoint_name(mixed, "mixed")), ("data", None, None))


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.gate = Einsum("BTD,DF->BTF", (D, F), (None, "model"), rngs)
        self.up = Einsum("BTD,DF->BTF", (D, F), (None, "model"), rngs)
        self.down = Einsum("BTF,FD->BTD", (F, D), ("model", None), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = shard(nnx.silu(self.gate(x)) * self.up(x), ("data", None, "model"))
        return shard(self.down(checkpoint_name(hidden, "hidden")), ("data", None, None))


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention_norm, self.attention = RMSNorm(), Attention(rngs)
        self.mlp_norm, self.mlp = RMSNorm(), MLP(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = Einsum("BTV,VD->BTD", (V, D), (None, "model"), rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.norm = RMSNorm()
        self.head = Einsum("BTD,DV->BTV", (D, V), (None, "model"), rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = shard(self.embed.w[...][tokens], ("data", None, None))
        for layer in self.layers:
            x = layer(x)
        return shard(self.head(self.norm(x)), ("data", None, "model"))


def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    mesh = jax.sharding.get_mesh()
    decoder = nnx.eval_shape(lambda: Decoder(nnx.Rngs(0)))
    for _, module in nnx.iter_modules(decoder):
        if isinstance(module, Einsum | RMSNorm):
            sharding = NamedSharding(mesh, P(*module.spec))
            described: Any = jax.ShapeDtypeStruct(module.w.shape, module.w.dtype, sharding=sharding)
            module.w.set_value(described)
    graph, state = nnx.split(decoder)

    def loss(state: nnx.State, tokens: jax.Array) -> jax.Array:
        logits = checkpoint_name(nnx.merge(graph, state)(tokens), "logits")
        targets = jax.nn.one_hot(jnp.roll(tokens, -1, axis=1), V)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * targets, axis=-1))

    tokens = jax.ShapeDtypeStruct((B, T), "int32", sharding=NamedSharding(mesh, P("data")))
    return jax.jit(jax.value_and_grad(loss)), (state, tokens)
