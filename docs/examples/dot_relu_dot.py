"""Two matrix products with a ReLU between, as in Flax's guide to several devices: annotated with mesh axes, and with
logical axes. `shardtui --model docs/examples/dot_relu_dot.py:DotReluDot --preset dp-tp4 --batch-size 8`"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P


class DotReluDot(nnx.Module):
    """Names axes of the mesh itself: it can be laid out where the mesh has `data` and `model`."""

    def __init__(self, depth: int = 1024, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        first = nnx.with_partitioning(init, (None, "model"))
        self.dot1 = nnx.Linear(depth, depth, kernel_init=first, use_bias=False, rngs=rngs)
        self.w2 = nnx.Param(init(rngs.params(), (depth, depth)), out_sharding=("model", None))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.dot1(x))
        y = jax.lax.with_sharding_constraint(y, P("data", "model"))
        return y @ self.w2[...]


class LogicalDotReluDot(nnx.Module):
    """Names what its dims are, and leaves it to the rules of a preset where they go: any preset fits."""

    def __init__(self, depth: int = 1024, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        first = nnx.with_partitioning(init, ("embed", "mlp"))
        self.dot1 = nnx.Linear(depth, depth, kernel_init=first, use_bias=False, rngs=rngs)
        self.w2 = nnx.Param(init(rngs.params(), (depth, depth)), out_sharding=("mlp", "embed"))

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.dot1(x)) @ self.w2[...]


def loss(model: DotReluDot | LogicalDotReluDot, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)


def batch(step: int, batch_size: int, depth: int = 1024) -> dict[str, np.ndarray]:
    """The same eight examples in every step: the model learns them by heart."""
    random = np.random.default_rng(0)
    return {name: random.standard_normal((batch_size, depth), np.float32) for name in ("x", "y")}


def optimizer() -> optax.GradientTransformation:
    return optax.adam(1e-3)
