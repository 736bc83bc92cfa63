"""The linear maps of a block."""

from flax import nnx
from jax.typing import DTypeLike

INIT_STDDEV = 0.02
"""From Radford et al. 2019, as is the factor 1/√(2·layers) for projections into the residual stream."""


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
    """Returns a linear map from the input's last dims, named `axes_in`, to new dims named `axes_out`.

    With experts there is one map per expert, and the first dim of the input is the expert.
    """
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
