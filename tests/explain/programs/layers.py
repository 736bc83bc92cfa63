"""Layers, losses and optimizers of Flax and Optax, each as a gradient or an update over data = 4 × model = 2."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

B, T, D, F = 8, 16, 32, 64
Call = Callable[[Any, jax.Array], jax.Array]


def _split(shape: tuple[int, ...], spec: P, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(jax.sharding.get_mesh(), spec))


def _weights(state: Any) -> Any:
    """Kernels split over `model` along their last dim, the rest whole."""

    def split(leaf: Any) -> jax.ShapeDtypeStruct:
        is_split = leaf.ndim > 1 and leaf.shape[-1] % 2 == 0
        return _split(leaf.shape, P(*[None] * (leaf.ndim - 1), "model") if is_split else P(), leaf.dtype.name)

    return jax.tree.map(split, state)


def layer(make: Callable[[nnx.Rngs], nnx.Module], shape: tuple[int, ...], *spec: str | None) -> jax.stages.Lowered:
    """The gradient of a layer's parameters and of its input, which is split by `spec`."""
    graph, state = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))

    def loss(state: Any, x: jax.Array) -> jax.Array:
        return (nnx.merge(graph, state)(x) ** 2).mean()  # type: ignore[operator]

    return jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True)).lower(_weights(state), _split(shape, P(*spec)))


def update(optimizer: optax.GradientTransformation) -> jax.stages.Lowered:
    """One update of two kernels, split as their gradients are."""
    parameters = {"up": _split((D, F), P("data", "model")), "bias": _split((F,), P("model"))}
    state = jax.eval_shape(optimizer.init, parameters)

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        same = [each for each in parameters.values() if each.shape == leaf.shape]
        return same[0] if same else _split(leaf.shape, P(), leaf.dtype.name)

    return jax.jit(optimizer.update).lower(parameters, jax.tree.map(placed, state), parameters)


def loss(function: Callable[..., jax.Array], labels: tuple[int, ...], *spec: str | None) -> jax.stages.Lowered:
    """The gradient of a loss of logits whose classes are split over `model`."""
    logits, targets = (
        _split((B, F), P("data", "model")),
        _split(labels, P(*spec), "int32" if len(labels) < 2 else "float32"),
    )
    return jax.jit(jax.grad(lambda x, y: function(x, y).mean())).lower(logits, targets)


PROGRAMS: dict[str, Callable[[], jax.stages.Lowered]] = {
    "nnx.Linear": lambda: layer(lambda rngs: nnx.Linear(D, F, rngs=rngs), (B, D), "data"),
    "nnx.LinearGeneral": lambda: layer(lambda rngs: nnx.LinearGeneral(D, (4, 8), rngs=rngs), (B, D), "data"),
    "nnx.Conv": lambda: layer(lambda rngs: nnx.Conv(D, F, (3,), rngs=rngs), (B, T, D), "data"),
    "nnx.Conv by sequence": lambda: layer(lambda rngs: nnx.Conv(D, F, (3,), rngs=rngs), (2, T, D), None, "data"),
    "nnx.ConvTranspose": lambda: layer(lambda rngs: nnx.ConvTranspose(D, F, (3,), rngs=rngs), (B, T, D), "data"),
    "nnx.LayerNorm": lambda: layer(lambda rngs: nnx.LayerNorm(D, rngs=rngs), (B, D), "data", "model"),
    "nnx.RMSNorm": lambda: layer(lambda rngs: nnx.RMSNorm(D, rngs=rngs), (B, D), "data", "model"),
    "nnx.GroupNorm": lambda: layer(lambda rngs: nnx.GroupNorm(D, 4, rngs=rngs), (B, T, D), "data"),
    "nnx.BatchNorm": lambda: layer(lambda rngs: nnx.BatchNorm(D, use_running_average=True, rngs=rngs), (B, D), "data"),
    "nnx.MultiHeadAttention": lambda: layer(
        lambda rngs: nnx.MultiHeadAttention(4, D, decode=False, rngs=rngs), (B, T, D), "data"
    ),
    "nnx.Einsum": lambda: layer(lambda rngs: nnx.Einsum("bd,df->bf", (D, F), rngs=rngs), (B, D), "data", "model"),
    "optax.adamw": lambda: update(optax.adamw(1e-3)),
    "optax.clip_by_global_norm": lambda: update(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, 0.9))),
    "optax.lion": lambda: update(optax.lion(1e-3)),
    "optax.adafactor": lambda: update(optax.adafactor(1e-3, min_dim_size_to_factor=8)),
    "optax.muon": lambda: update(optax.contrib.muon(1e-3)),
    "optax.softmax_cross_entropy": lambda: loss(optax.softmax_cross_entropy, (B, F), "data", "model"),
    "optax.softmax_cross_entropy_with_integer_labels": lambda: loss(
        optax.softmax_cross_entropy_with_integer_labels, (B,), "data"
    ),
    "optax.sigmoid_binary_cross_entropy": lambda: loss(optax.sigmoid_binary_cross_entropy, (B, F), "data", "model"),
    "optax.cosine_similarity": lambda: loss(optax.losses.cosine_similarity, (B, F), "data", "model"),
}
