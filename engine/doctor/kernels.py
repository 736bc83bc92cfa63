"""Checks of kernels on these devices: every kind of attention and of experts against the plain one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType
from msgspec.structs import replace

from ..models.attention_kernels import attend
from ..models.blocks import Mixture
from ..models.sizes import attention_kernels
from ..parallel.constraints import activation_rules
from ..parallel.mesh import build_mesh
from ..spec.model_config import AttentionKernel, ModelConfig
from ..wire.checkup import Check

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]
"""Arrays of the plain kind, and the same of a kernel."""
SEQ, HEADS, WIDTH = 256, 2, 64
"""Tokens on a device, heads and their width."""
DECODER = ModelConfig(layers=1, embed=HEADS * WIDTH, heads=HEADS, mlp=128, vocab=64, vocab_rows=64, context=64)
MIXTURE = replace(DECODER, experts=4, experts_per_token=2, activation="swiglu", biases="none", capacity_factor=0.0)
DTYPES = ("float32", "bfloat16")
EXACT, ROUNDED = 1e-4, 3e-2
"""Largest difference of two results, relative to the largest element: in float32 on CPU; and where products round to
the 8 bits of bfloat16. In their common factor the rounding of many elements cancels: a tenth."""


def check_attention(devices: Sequence[jax.Device]) -> Check:
    """Compares values and gradients, with sequences whole on each device, and split over all of them."""
    platform, capability = devices[0].platform, getattr(devices[0], "compute_capability", "")
    results: dict[str, Pairs] = {}
    for dtype in DTYPES:
        asked = "splash" if platform == "cpu" else "auto"  # interpreted on CPU
        kernels = attention_kernels(replace(DECODER, attention=asked, dtype=dtype), platform, SEQ, str(capability))
        whole = _attention(devices, ["plain", kernels.whole], SEQ, "batch", dtype)
        split: dict[str, list[np.ndarray]] = {}
        if len(devices) > 1:
            seq = SEQ * len(devices)
            split = _attention(devices, ["plain", "ring", kernels.of(seq, len(devices))], seq, "seq", dtype)
        for found in (whole, split):
            results |= {f"{name} {dtype}": list(zip(found["plain"], found[name], strict=True)) for name in found}
    return compared(results, platform)


def _attention(
    devices: Sequence[jax.Device], kernels: Sequence[AttentionKernel], seq: int, split: str, dtype: str
) -> dict[str, list[np.ndarray]]:
    """Returns the results of each kernel, for arrays whose dim `split` is split over all devices."""
    batch = len(devices) if split == "batch" else 1
    shapes = (batch, seq, HEADS, WIDTH), (batch, seq, 2, HEADS, WIDTH)
    query, kv = (jax.random.normal(jax.random.key(at), shape, dtype) for at, shape in enumerate(shapes))
    mesh = build_mesh({"all": len(devices)}, devices, AxisType.Auto)
    with jax.set_mesh(mesh), activation_rules(mesh, {split: (("all",),)}):
        return {kernel: _results(partial(attend, kernel=kernel), query, kv) for kernel in dict.fromkeys(kernels)}


def check_experts(devices: Sequence[jax.Device]) -> Check:
    """Compares ragged products, and experts with a capacity for all tokens, with all experts for each token."""
    kinds = {"plain": {}, "ragged": {"expert_matmul": "ragged"}, "capacity": {"capacity_factor": 2.0}}
    mesh = build_mesh({"all": len(devices)}, devices, AxisType.Auto)
    results: dict[str, Pairs] = {}
    for dtype in DTYPES:
        x = jax.random.normal(jax.random.key(0), (len(devices), 64, MIXTURE.embed), dtype)
        found: dict[str, list[np.ndarray]] = {}
        for name, changes in kinds.items():
            with nnx.use_eager_sharding(False), jax.set_mesh(mesh), activation_rules(mesh, {"batch": (("all",),)}):
                graph, parameters = nnx.split(Mixture(replace(MIXTURE, **changes), jnp.dtype(dtype), nnx.Rngs(0)))
                found[name] = _results(partial(_mixed, graph), parameters, x)
        results |= {f"{name} {dtype}": list(zip(found["plain"], found[name], strict=True)) for name in kinds}
    return compared(results, devices[0].platform)


def _mixed(graph: Any, parameters: Any, x: jax.Array) -> jax.Array:
    return nnx.merge(graph, parameters)(x)[0]


def _results(function: Callable[..., jax.Array], *arguments: Any) -> list[np.ndarray]:
    """Returns the value of a function, and the gradients of a weighted sum of it, in float32."""

    def weighted(*arguments: Any) -> tuple[jax.Array, jax.Array]:
        value = function(*arguments)
        weights = jax.random.normal(jax.random.key(7), value.shape, jnp.float32)
        return jnp.sum(value.astype(jnp.float32) * weights), value

    both = jax.value_and_grad(weighted, tuple(range(len(arguments))), has_aux=True)
    (_, value), gradients = jax.jit(both)(*arguments)
    return [np.asarray(leaf, np.float32) for leaf in (value, *jax.tree.leaves(gradients))]


def compared(results: Mapping[str, Pairs], platform: str) -> Check:
    """Compares each kernel's arrays with those of the plain one."""
    numbers: dict[str, float] = {}
    wrong = list[str]()
    for name, pairs in results.items():
        if name.startswith("plain "):
            continue
        is_exact = platform == "cpu" and name.endswith(" float32")
        error = max(float(np.abs(found - plain).max() / np.abs(plain).max()) for plain, found in pairs)
        scale = max((_scale(plain, found) for plain, found in pairs), key=abs)
        numbers[f"{name}: largest difference"] = float(f"{error:.2g}")
        if not error <= (EXACT if is_exact else ROUNDED) or not abs(scale) <= (EXACT if is_exact else ROUNDED / 10):
            wrong.append(f"{name} differs by {error:.2g} of the largest element, {scale:+.2%} in scale")
    if wrong:
        advice = "train with --set attention=plain, or --set expert_matmul=dense, and report it"
        return Check(verdict="broken", found="; ".join(wrong), advice=advice, numbers=numbers)
    if not numbers:
        return Check(found="these devices compute only the plain kind")
    words = ", ".join(f"{name.partition(':')[0]} {number:.1e}" for name, number in numbers.items())
    return Check(found=f"largest difference of values and gradients from plain: {words}", numbers=numbers)


def _scale(plain: np.ndarray, found: np.ndarray) -> float:
    """Returns the factor between two results - 1, by least squares."""
    expected, other = (array.astype(np.float64).ravel() for array in (plain, found))
    return float(other @ expected / (expected @ expected)) - 1
