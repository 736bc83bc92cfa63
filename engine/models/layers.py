"""The linear maps of a block, and its norms: LayerNorm and RMSNorm, over the width, or over queries and keys.

Barriers keep elementwise operations out of the products beside them. The TPU compiler would fuse them into each product
that reads them, and compute them again for each of its tiles.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ..parallel.constraints import hinted, shard
from ..spec.model_config import ModelConfig

INIT_STDDEV = 0.02
"""From Radford et al. 2019, as is the factor 1/√(2·layers) for projections into the residual stream."""


@jax.custom_vjp
def gradient_barrier(x: jax.Array) -> jax.Array:
    """Returns `x`, with an optimization barrier on its gradient."""
    return x


gradient_barrier.defvjp(lambda x: (x, None), lambda _, gradient: (jax.lax.optimization_barrier(gradient),))


def projection(
    sizes_in: tuple[int, ...],
    sizes_out: tuple[int, ...],
    axes_in: tuple[str, ...],
    axes_out: tuple[str, ...],
    stddev: float,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
    experts: int = 0,
    use_bias: bool = True,
) -> nnx.LinearGeneral:
    """Returns a linear map from the input's last dims, named `axes_in`, to new dims named `axes_out`; with experts one
    map per expert, the first dim of the input."""
    axes = ("experts",) if experts else ()
    return nnx.LinearGeneral(
        sizes_in,
        sizes_out,
        axis=tuple(range(-len(sizes_in), 0)),
        batch_axis={0: experts} if experts else {},
        use_bias=use_bias,
        dtype=dtype,
        kernel_init=nnx.with_partitioning(nnx.initializers.normal(stddev), axes + axes_in + axes_out),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), axes + axes_out),
        rngs=rngs,
    )


class RmsNorm(nnx.Module):
    """Divides by the root mean square over the last dims, in float32 (Zhang and Sennrich 2019). The scale is the
    parameter, plus 1 with `norm_offset`."""

    def __init__(self, config: ModelConfig, shape: tuple[int, ...], axes: tuple[str, ...], dtype: DTypeLike) -> None:
        self._epsilon, self._dtype, self._offset = config.norm_epsilon, dtype, 1.0 if config.norm_offset else 0.0
        self.scale = nnx.Param(jnp.full(shape, 1.0 - self._offset), out_sharding=axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, wide = self.scale[...], x.astype(jnp.float32)
        square = jnp.mean(wide * wide, axis=tuple(range(-scale.ndim, 0)), keepdims=True)
        return (wide * jax.lax.rsqrt(square + self._epsilon) * (scale + self._offset)).astype(self._dtype)


Norm = nnx.LayerNorm | RmsNorm


def embed_norm(config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> Norm:
    """Returns a norm over `embed`, [B, T, D] to [B, T, D]."""
    if config.norm == "rms":
        return RmsNorm(config, (config.embed,), ("embed",), dtype)
    return nnx.LayerNorm(
        config.embed,
        epsilon=config.norm_epsilon,
        dtype=dtype,
        scale_init=nnx.with_partitioning(nnx.initializers.ones_init(), ("embed",)),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), ("embed",)),
        rngs=rngs,
    )


def heads_norm(config: ModelConfig, heads: int, axis: str, dtype: DTypeLike) -> RmsNorm | None:
    """Returns the norm of queries or keys [B, T, N, H], whose heads are named `axis`; None if the family has none."""
    match config.query_norm:
        case "head":
            return RmsNorm(config, (config.head_dim,), ("head_dim",), dtype)
        case "full":
            return RmsNorm(config, (heads, config.head_dim), (axis, "head_dim"), dtype)
        case "none":
            return None


def apply_norm(norm: Norm, x: jax.Array, name: str, is_split: bool = False) -> jax.Array:
    """Applies `norm` to [B, T, D]. `is_split`: each device computes its part of the width, which is then gathered."""
    x = gradient_barrier(norm(x))
    if is_split:
        x = hinted(x, "batch", "seq", "saved_embed")
    return shard(x, "batch", "seq", "activation_embed", name=name)
