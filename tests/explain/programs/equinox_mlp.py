"""An Equinox MLP: the hidden layer is split over model, the batch over data. Its loss and gradients."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, WIDTH, HIDDEN, OUT = 32, 16, 64, 8
SPECS = {
    ".layers[0].weight": P("model"),  # [F, D]: Equinox keeps weights as [out, in]
    ".layers[0].bias": P("model"),
    ".layers[1].weight": P(None, "model"),
}


class Network(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0))
        self.layers = [eqx.nn.Linear(WIDTH, HIDDEN, key=keys[0]), eqx.nn.Linear(HIDDEN, OUT, key=keys[1])]

    def __call__(self, x: jax.Array) -> jax.Array:  # [D]
        hidden = checkpoint_name(jax.nn.relu(self.layers[0](x)), "hidden")  # [F]
        return self.layers[1](hidden)


def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    mesh = jax.sharding.get_mesh()
    arrays, static = eqx.partition(eqx.filter_eval_shape(Network), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def loss(arrays: Network, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(eqx.combine(arrays, static))(x) ** 2)

    def split(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, SPECS.get(jax.tree_util.keystr(path), P()))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32", sharding=NamedSharding(mesh, P("data")))
    return jax.jit(jax.value_and_grad(loss)), (jax.tree.map_with_path(split, arrays), x)
