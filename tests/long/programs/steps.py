"""Train steps of other libraries and of plain jax, over the mesh in force: the batch over its first axis, and each
array over it by its longest dim, as FSDP has it; with a second axis, kernels over that by their last dim."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.program.program import COMPILER_OPTIONS

BATCH, TOKENS, WIDTH, HIDDEN, HEADS, LAYERS, VOCABULARY = 64, 512, 1024, 4096, 16, 2, 32_000
Pair = tuple[Any, tuple[Any, ...]]
OPTIONS = COMPILER_OPTIONS["tpu"]


def step_of(apply: Callable[[Any, jax.Array], jax.Array], shapes: Any, optimizer: Any, donates: bool = True) -> Pair:
    """The step of a model that makes logits of parameters and tokens, and its arguments."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = apply(params, tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, moments: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, value

    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS + 1), jnp.int32)
    arrays = shapes, jax.eval_shape(optimizer.init, shapes)
    return jax.jit(step, donate_argnums=(0, 1) if donates else (), compiler_options=OPTIONS), (
        *jax.tree.map(split, arrays),
        by_batch(tokens),
    )


def split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    mesh = jax.sharding.get_mesh()
    first, *others = mesh.axis_names
    spec: list[str | None] = [None] * leaf.ndim
    if others and leaf.ndim > 1:
        spec[-1] = others[0]
    free = [dim for dim in range(leaf.ndim) if spec[dim] is None and leaf.shape[dim] % mesh.shape[first] == 0]
    if free:
        spec[max(free, key=lambda dim: leaf.shape[dim])] = first
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P(*spec)))


def by_batch(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    mesh = jax.sharding.get_mesh()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P(mesh.axis_names[0])))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.LayerNorm(dtype=x.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, dtype=x.dtype)(h, h)
        h = nn.gelu(nn.Dense(HIDDEN, dtype=x.dtype)(nn.LayerNorm(dtype=x.dtype)(x)))
        return x + nn.Dense(WIDTH, dtype=x.dtype)(h)


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, WIDTH)(tokens).astype(jnp.bfloat16)
        for _ in range(LAYERS):
            x = nn.remat(LinenBlock)()(x)
        return nn.Dense(VOCABULARY, dtype=x.dtype)(nn.LayerNorm(dtype=x.dtype)(x))


def linen() -> Pair:
    model = LinenModel()
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))
    return step_of(model.apply, shapes, optax.adamw(1e-3))


def equinox(donates: bool = True) -> Pair:
    """A multilayer perceptron of each position."""

    class Model(eqx.Module):
        embed: eqx.nn.Embedding
        layers: list[eqx.nn.MLP]
        head: eqx.nn.Linear

        def __init__(self, key: jax.Array) -> None:
            embed, head, *keys = jax.random.split(key, LAYERS + 2)
            self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=embed)
            self.layers = [eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 1, key=each) for each in keys]
            self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=head)

        def __call__(self, token: jax.Array) -> jax.Array:
            x = self.embed(token)
            for layer in self.layers:
                x = x + layer(x)
            return self.head(x)

    arrays, rest = eqx.partition(
        eqx.filter_eval_shape(Model, jax.random.key(0)), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )
    return step_of(
        lambda held, tokens: jax.vmap(jax.vmap(eqx.combine(held, rest)))(tokens), arrays, optax.lion(1e-4), donates
    )


def equinox_undonated() -> Pair:
    return equinox(donates=False)


def haiku() -> Pair:
    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(VOCABULARY, WIDTH)(tokens)
        for _ in range(LAYERS):
            h = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
            x = x + hk.Linear(WIDTH)(jax.nn.relu(hk.Linear(HIDDEN)(h)))
        return hk.Linear(VOCABULARY)(x)

    model = hk.without_apply_rng(hk.transform(forward))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))
    return step_of(model.apply, shapes, optax.sgd(0.1, momentum=0.9))


def nnx_model() -> Pair:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
            self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
            self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.embed(tokens)
            return self.head(x + self.attention(self.norm(x)))

    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param)
    return step_of(lambda held, tokens: nnx.merge(graph, held)(tokens), nnx.to_pure_dict(state), optax.adamw(1e-3))


def scanned(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """A stack of blocks in plain jax, as a scan with remat."""

    @jax.checkpoint
    def block(x: jax.Array, held: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        x = jax.lax.with_sharding_constraint(x, P(jax.sharding.get_abstract_mesh().axis_names[0]))
        heads = jnp.einsum("btd,dchk->cbthk", x, held["qkv"].astype(x.dtype).reshape(WIDTH, 3, HEADS, -1))
        mixed = jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
        x = x + mixed @ held["out"].astype(x.dtype)
        return x + jax.nn.silu(x @ held["up"].astype(x.dtype)) @ held["down"].astype(x.dtype), None

    x = params["embed"].astype(jnp.bfloat16)[tokens]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    return x @ params["embed"].astype(x.dtype).T


def plain() -> Pair:
    sizes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    blocks = {name: jax.ShapeDtypeStruct((12, *size), jnp.float32) for name, size in sizes.items()}
    shapes = {"embed": jax.ShapeDtypeStruct((VOCABULARY, WIDTH), jnp.float32), "blocks": blocks}
    return step_of(scanned, shapes, optax.adamw(1e-3))


def inference() -> Pair:
    """The logits of the same stack, without a gradient."""
    _, (params, _, _) = plain()
    return jax.jit(scanned, compiler_options=OPTIONS), (
        params,
        by_batch(jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)),
    )
