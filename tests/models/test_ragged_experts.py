"""Experts by ragged products: the same losses and gradients as by dense ones, in every layout."""

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jax import Array
from shardtui.engine.models.experts import Kernels, ragged_experts
from shardtui.engine.models.sizes import expert_matmul
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.preset_reader import load_preset

from .families import QWEN3_MOE
from .test_attention import losses
from .test_families import config_of

RAGGED, DENSE = (msgspec.structs.replace(QWEN3_MOE, expert_matmul=kind) for kind in ("ragged", "dense"))
RULES = {
    "batch": {"batch": ("a", "b")},
    "experts": {"batch": ("a", "b"), "experts": ("b",)},
    "hidden": {"batch": ("a",), "mlp": ("b",)},
    "experts and hidden": {"batch": ("a", "b"), "experts": ("a",), "mlp": ("b",)},
    "fully sharded": {"batch": ("a", "b"), "embed": ("a", "b")},
    "fully sharded and hidden": {"batch": ("a",), "embed": ("a",), "mlp": ("b",)},
    "fully sharded and experts": {"batch": ("a", "b"), "embed": ("b", "a"), "experts": ("b",)},
    "sequence": {"batch": ("a",), "seq": ("b",)},
    "sequence and hidden": {"batch": ("a",), "seq": ("b",), "mlp": ("b",)},
    "experts alone": {"experts": ("a", "b")},
    "experts that do not divide": {"batch": ("a",), "experts": ("b",), "mlp": ("b",)},
}


def by_dense(x: Array, chosen: Array, weights: Array, kernels: Kernels) -> Array:
    """Computes all tokens with all experts."""
    combine = jnp.einsum("BTKE,BTK->BTE", jax.nn.one_hot(chosen, len(kernels.up)), weights)
    hidden = jnp.einsum("BTD,EDF->EBTF", x, kernels.up)
    if kernels.gate is None:
        hidden = jax.nn.silu(hidden)
    else:
        hidden *= jax.nn.silu(jnp.einsum("BTD,EDF->EBTF", x, kernels.gate))
    return jnp.einsum("BTE,EBTF,EFD->BTD", combine, hidden, kernels.down)


@pytest.mark.parametrize(("layout", "is_gated"), [("experts and hidden", False), *((layout, True) for layout in RULES)])
def test_values_and_gradients_are_those_of_dense_products(layout: str, is_gated: bool) -> None:
    experts = 6 if "not divide" in layout else 8
    keys = jax.random.split(jax.random.key(0), 7)
    x = jax.random.normal(keys[0], (4, 12, 16))
    chosen = jax.random.categorical(keys[1], jnp.arange(experts) * 0.5, shape=(4, 12, 2))
    chosen = chosen.at[..., 1].set((chosen[..., 0] + 1) % experts)
    weights = jax.random.uniform(keys[2], (4, 12, 2))
    up, gate = (jax.random.normal(key, (experts, 16, 8)) for key in keys[3:5])
    kernels = Kernels(up, gate if is_gated else None, jax.random.normal(keys[5], (experts, 8, 16)))
    target = jax.random.normal(keys[6], x.shape)
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def ragged(x: Array, weights: Array, kernels: Kernels) -> Array:
        with activation_rules(mesh, RULES[layout]):
            return jnp.sum(target * ragged_experts(x, chosen, weights, kernels, jax.nn.silu))

    def dense(x: Array, weights: Array, kernels: Kernels) -> Array:
        return jnp.sum(target * by_dense(x, chosen, weights, kernels))

    found, expected = (jax.jit(jax.value_and_grad(each, (0, 1, 2)))(x, weights, kernels) for each in (ragged, dense))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


@pytest.fixture(scope="module")
def dense_losses() -> list[float]:
    return losses(config_of(DENSE), load_preset("dp"))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ep2-tp2", "fsdp", "dp-ep4", "fsdp-tp2", "fsdp-tp2-explicit", "sp2"])
def test_losses_are_those_of_dense_products(preset: str, dense_losses: list[float]) -> None:
    np.testing.assert_allclose(losses(config_of(RAGGED), load_preset(preset)), dense_losses, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "minimal"])
def test_losses_with_remat_are_those_of_dense_products(remat: str, dense_losses: list[float]) -> None:
    model = msgspec.structs.replace(RAGGED, remat=remat)
    np.testing.assert_allclose(losses(config_of(model), load_preset("ep2-tp2")), dense_losses, rtol=1e-5)


def test_ragged_products_are_for_tpus_with_a_kernel_for_them() -> None:
    has_kernel = jax.__version_info__ >= (0, 12)
    auto = msgspec.structs.replace(QWEN3_MOE, expert_matmul="auto")
    assert expert_matmul(auto, "tpu") == ("ragged" if has_kernel else "dense")
    assert expert_matmul(auto, "cpu") == expert_matmul(auto, "gpu") == "dense"
    assert expert_matmul(RAGGED, "cpu") == "ragged"
    assert expert_matmul(msgspec.structs.replace(auto, capacity_factor=1.25), "tpu") == "dense"


def test_ragged_products_take_no_capacity_and_no_biases() -> None:
    bad = msgspec.structs.replace(RAGGED, capacity_factor=1.25, biases="all")
    assert [problem.partition(": ")[2] for problem in problems_of(config_of(bad))] == [
        "with capacity_factor 1.25 experts compute the slots of their capacity: add --set capacity_factor=0 or --set "
        "expert_matmul=auto",
        "experts add no biases: add --set biases=none or --set expert_matmul=auto",
    ]
