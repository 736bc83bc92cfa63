"""Mixtures of experts: routing, traffic, and independence of the mesh."""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jax import Array
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.lint import lint
from shardtui.engine.models.experts import Kernels, choose, ragged_experts, slots_of, weights_of_all
from shardtui.engine.models.sizes import expert_matmul
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import ScheduledSwitch, TrainingConfig
from shardtui.engine.spec.model_config import BALANCE
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.events import Switched

from ..conftest import WIDE, built_in_task, tiny_config, tiny_model
from ..programs import OF_EXPERTS
from ..training import test_loop as training
from .families import QWEN3_MOE, logits_of
from .test_attention import losses
from .test_model import config_of

MIXTURE = msgspec.structs.replace(WIDE, layers=1, experts=8, experts_per_token=2, dropout=0.1)
TOKENS = TrainingConfig(batch_size=8, seq_len=32)
TINY = tiny_model(experts=4, experts_per_token=2)
OfExperts = Callable[[str], Program]


@pytest.fixture(scope="module")
def mixture() -> Task:
    return Task(tiny_config(model=MIXTURE, training=TOKENS), "cpu")


@pytest.fixture(scope="module")
def of_experts(mixture: Task) -> OfExperts:
    return cache(lambda name: compile_program(place(mixture, load_preset(name), jax.devices())))


@partial(jax.jit, static_argnames=("per_token", "capacity"))
def routed(probabilities: Array, per_token: int, capacity: int) -> tuple[Array, Array, Array]:
    choices = choose(probabilities, per_token)
    return *slots_of(choices, capacity), choices.balance


def test_experts_take_tokens_in_order_up_to_their_capacity_and_are_weighted_and_balanced() -> None:
    dispatch, combine, _ = routed(
        jnp.array([[[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]]]), per_token=1, capacity=2
    )
    assert dispatch[0].sum(axis=-1).tolist() == [[1, 0], [1, 0], [0, 1], [0, 0]]
    assert dispatch[0].sum(axis=0).tolist() == [[1, 1], [1, 0]], "each slot has one token"
    np.testing.assert_allclose(combine[0].sum(axis=(1, 2)), [0.7, 0.6, 0.8, 0])
    dispatch, combine, _ = routed(
        jnp.array([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]]), per_token=2, capacity=2
    )
    assert dispatch[0].sum(axis=-1).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    expected = [[5 / 8, 3 / 8, 0], [0, 6 / 9, 3 / 9], [0, 0, 5 / 8]]
    np.testing.assert_allclose(combine[0].sum(axis=-1), expected, rtol=1e-6)
    even = jax.nn.softmax(50 * jnp.eye(4))[None]
    assert routed(even, per_token=1, capacity=4)[-1].tolist() == pytest.approx([1.0])
    one = even[:, :1].repeat(4, axis=1)
    assert routed(one, per_token=1, capacity=4)[-1].tolist() == pytest.approx([4.0]), "all to one of 4"
    uneven = jnp.array([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]])
    by_hand = 3 * (0.5 * (0.5 + 0.1) / 2 + 0.5 * (0.3 + 0.6) / 2)
    assert routed(uneven, per_token=2, capacity=2)[-1].tolist() == pytest.approx([by_hand])


@pytest.mark.slow
def test_the_minimised_value_includes_the_balance_loss() -> None:
    task = Task(tiny_config(model=TINY), "cpu")
    params = jax.jit(task.initial_state)().params
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 256)

    def balance_loss(params: Any) -> jax.Array:
        minimised, (scalars, _) = task.outcome(params, {}, Batch(tokens, tokens), None)
        return (minimised - scalars["loss"]) / BALANCE

    balance, gradient = jax.jit(jax.value_and_grad(balance_loss))(params)
    assert 0.99 * TINY.layers < balance < 2 * TINY.layers
    gradients = {"router": gradient["blocks"]["mlp"]["router"], "norm": gradient["norm"]}
    largest = {name: max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(tree)) for name, tree in gradients.items()}
    assert largest["router"] > 1e-4 > largest["norm"], "the final norm comes after all routers"


def test_all_slots_have_the_weights_of_no_limit() -> None:
    drawn = jax.nn.softmax(jax.random.normal(jax.random.key(0), (3, 12, 4)))
    choices = choose(drawn, per_token=2)
    weights, (_, combine) = weights_of_all(choices), slots_of(choices, capacity=12)
    np.testing.assert_allclose(weights, combine.sum(axis=-1), atol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)


def test_logits_depend_only_on_earlier_tokens_and_flops_on_active_experts() -> None:
    """Even if later tokens compete for the same expert slots."""
    logits = logits_of(msgspec.structs.replace(TINY, capacity_factor=0.5))
    before = np.random.default_rng(1).integers(0, 256, (4, 16))
    after = before.copy()
    after[:, 9:] ^= 7
    differ = np.any(logits(before) != logits(after), axis=(0, 2))
    assert not differ[:9].any()
    assert differ[9:].all()
    dense, moe = (built_in_task(name, "batch_size=1", "seq_len=128") for name in ("nano", "nano-moe"))
    mlp = 2 * 128 * 512 + 512 + 128
    assert moe.parameters == dense.parameters + 4 * (7 * mlp + 128 * 8)
    kernels = 4 * (4 * 128**2 + 2 * 2 * 128 * 512 + 128 * 8)
    assert moe.flops_per_step == 128 * (6 * (kernels + 256 * 128) + 12 * 4 * 128 * 128)


@pytest.mark.parametrize(
    ("name", "batch"),
    [pytest.param("ep2-tp2", 8 // 4, marks=pytest.mark.core), pytest.param("dp-ep4", 8 // 8, marks=pytest.mark.slow)],
)
def test_tokens_reach_their_experts_and_return_by_all_to_alls_and_lint_finds_nothing(
    name: str, batch: int, mixture: Task, of_experts: OfExperts
) -> None:
    """Each layer has two forward and two backward, each with all slots of the device's sequences."""
    program = of_experts(name)
    exchanges = [info for info in program.description.collectives or [] if info.kind != "all-reduce"]
    size = batch * 8 * math.ceil(32 * 2 * 1.25 / 8) * 128 * 4
    reported = [(info.kind, info.axes, info.count, info.bytes_each) for info in exchanges]
    assert reported == [("all-to-all", ["expert"], MIXTURE.layers, size)] * 4
    inspected = inspect_program(program.placement)
    assert lint(program.description, inspected, mixture.flops_per_step) == []
    arrays = {array.name: array for array in (*program.description.arrays, *inspected.arrays)}
    for array in ("blocks.mlp.experts.up.kernel", "mu.blocks.mlp.experts.up.kernel", "blocks.mlp.received"):
        assert arrays[array].compiled_spec[array != "blocks.mlp.received"] == ["expert"], array


@pytest.mark.core
def test_switches_between_expert_presets_change_no_loss(mixture: Task, of_experts: OfExperts, tmp_path: Path) -> None:
    programs = {name: of_experts(name) for name in ("dp", *OF_EXPERTS)}
    switches = [ScheduledSwitch(1, "dp-ep4"), ScheduledSwitch(3, "ep2-tp2"), ScheduledSwitch(5, "dp")]
    plain, events = (training.run(mixture, programs, tmp_path, *made) for made in ([], switches))
    assert [event.to_preset for event in training.named(events, Switched)] == ["dp-ep4", "ep2-tp2", "dp"]
    assert training.losses(events) == pytest.approx(training.losses(plain), rel=1e-5)


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
PARTS = {"batch", "hidden", "fully sharded", "sequence"}
"""Layouts that others combine."""


def by_dense(x: Array, chosen: Array, weights: Array, kernels: Kernels) -> Array:
    combine = jnp.einsum("BTKE,BTK->BTE", jax.nn.one_hot(chosen, len(kernels.up)), weights)
    hidden = jnp.einsum("BTD,EDF->EBTF", x, kernels.up)
    if kernels.gate is None:
        hidden = jax.nn.silu(hidden)
    else:
        hidden *= jax.nn.silu(jnp.einsum("BTD,EDF->EBTF", x, kernels.gate))
    return jnp.einsum("BTE,EBTF,EFD->BTD", combine, hidden, kernels.down)


def sum_by_dense(x: Array, weights: Array, kernels: Kernels, chosen: Array, target: Array) -> Array:
    return jnp.sum(target * by_dense(x, chosen, weights, kernels))


values_by_dense = jax.jit(jax.value_and_grad(sum_by_dense, (0, 1, 2)))


@pytest.mark.parametrize(
    ("layout", "is_gated"),
    [
        ("experts and hidden", False),
        *(pytest.param(layout, True, marks=[pytest.mark.slow] * (layout in PARTS)) for layout in RULES),
    ],
)
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
        with activation_rules(mesh, {logical: (axes,) for logical, axes in RULES[layout].items()}):
            return jnp.sum(target * ragged_experts(x, chosen, weights, kernels, jax.nn.silu))

    found = jax.jit(jax.value_and_grad(ragged, (0, 1, 2)))(x, weights, kernels)
    expected = values_by_dense(x, weights, kernels, chosen, target)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


@pytest.fixture(scope="module")
def dense_losses() -> list[float]:
    return losses(config_of(DENSE), load_preset("dp"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "remat"),
    [
        *((preset, False) for preset in ("ep2-tp2", "fsdp", "dp-ep4", "fsdp-tp2", "fsdp-tp2-explicit", "sp2")),
        *(("ep2-tp2", remat) for remat in ("full", "minimal")),
    ],
)
def test_losses_are_those_of_dense_products(preset: str, remat: bool | str, dense_losses: list[float]) -> None:
    model = msgspec.structs.replace(RAGGED, remat=remat)
    np.testing.assert_allclose(losses(config_of(model), load_preset(preset)), dense_losses, rtol=1e-5)


def test_ragged_products_are_for_some_tpus_and_all_problems_of_a_mixture_are_reported_at_once() -> None:
    has_kernel = jax.__version_info__ >= (0, 12)
    auto = msgspec.structs.replace(QWEN3_MOE, expert_matmul="auto")
    assert expert_matmul(auto, "tpu") == ("ragged" if has_kernel else "dense")
    assert expert_matmul(auto, "cpu") == expert_matmul(auto, "gpu") == "dense"
    assert expert_matmul(RAGGED, "cpu") == "ragged"
    assert expert_matmul(msgspec.structs.replace(auto, capacity_factor=1.25), "tpu") == "dense"
    bad = msgspec.structs.replace(RAGGED, capacity_factor=1.25, biases="all")
    assert [problem.partition(": ")[2] for problem in problems_of(config_of(bad))] == [
        "with capacity_factor 1.25 experts compute the slots of their capacity: add --set capacity_factor=0 or --set "
        "expert_matmul=auto",
        "experts add no biases: add --set biases=none or --set expert_matmul=auto",
    ]
    bad = tiny_config(model=tiny_model(experts=4, experts_per_token=5, capacity_factor=-1.0))
    assert problems_of(bad) == [
        "experts_per_token 5: must be from 1 to experts, 4",
        "capacity_factor -1.0: must be above 0, or 0 for no limit",
    ]
    assert problems_of(tiny_config(model=tiny_model(experts=-1)))[0].startswith("experts -1: must be 1 or more")
    assert problems_of(tiny_config(model=tiny_model(experts_per_token=5))) == [], "a dense model has no use for it"
    with pytest.raises(UserError, match=r"rule → expert \(4\): experts 6 does not divide by 4: make it 4 or 8"):
        place(Task(tiny_config(model=tiny_model(experts=6)), "cpu"), load_preset("dp-ep4"), jax.devices())
