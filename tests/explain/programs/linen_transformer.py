"""A transformer block in Linen, whose kernels and activations have logical axes. Its loss and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import spmd
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

B, T, D, N, H, F = 8, 16, 32, 4, 8, 64
RULES = (("batch", "data"), ("embed", None), ("heads", "model"), ("mlp", "model"))
normal = nn.initializers.normal()


class Block(nn.Module):
    """Attention and an MLP, each with a residual: x `[B, T, D]`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm("norm_1")(x))
        x = x + self.mlp(self.norm("norm_2")(x))
        return spmd.with_logical_constraint(x, ("batch", None, "embed"))

    def norm(self, name: str) -> nn.RMSNorm:
        scale = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        return nn.RMSNorm(name=name, scale_init=scale)

    def attention(self, x: jax.Array) -> jax.Array:
        qkv = jnp.einsum("BTD,DCNH->CBTNH", x, self.kernel("qkv", (D, 3, N, H), ("embed", None, "heads", None)))
        q, k, v = spmd.with_logical_constraint(qkv, (None, "batch", None, "heads", None))
        scores = checkpoint_name(jnp.einsum("BTNH,BSNH->BNTS", q, k) / H**0.5, "scores")
        mixed = jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(scores), v)
        return jnp.einsum("BTNH,NHD->BTD", mixed, self.kernel("out", (N, H, D), ("heads", None, "embed")))

    def mlp(self, x: jax.Array) -> jax.Array:
        up = nn.with_logical_partitioning(normal, ("embed", "mlp"))
        down = nn.with_logical_partitioning(normal, ("mlp", "embed"))
        hidden = nn.gelu(nn.Dense(F, use_bias=False, kernel_init=up, name="up")(x))
        hidden = checkpoint_name(spmd.with_logical_constraint(hidden, ("batch", None, "mlp")), "hidden")
        return nn.Dense(D, use_bias=False, kernel_init=down, name="down")(hidden)

    def kernel(self, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> Any:
        return self.param(name, nn.with_logical_partitioning(normal, axes), shape)


def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    mesh, block = jax.sharding.get_mesh(), Block()

    def loss(params: Any, x: jax.Array) -> jax.Array:
        with nn.logical_axis_rules(RULES):
            return jnp.mean(jnp.square(jnp.asarray(block.apply(params, x))))

    boxed = jax.eval_shape(block.init, jax.random.key(0), jnp.ones((B, T, D)))
    shardings = spmd.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)
    params = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        nn.unbox(boxed),
        shardings,
    )
    x = jax.ShapeDtypeStruct((B, T, D), "float32", sharding=NamedSharding(mesh, P("data")))
    return jax.jit(jax.value_and_grad(loss)), (params, x)
