"""Attention of a sequence that is split over devices by a ring, against plain attention."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import AxisType
from shardtui.engine.hlo.traffic import Flow, flows
from shardtui.engine.models.attention_kernels import attend
from shardtui.engine.models.sizes import AttentionKernels
from shardtui.engine.models.task import Task
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.planning.step_trace import traced_cost
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.spec.model_config import AttentionKernel
from shardtui.engine.spec.preset import Axes, Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import BATCHES, WIDE
from ..hlo.test_collectives import total
from .test_attention import attention_config, losses, losses_of, plain

__all__ = ["plain"]

RULES: dict[str, Axes] = {"batch": ("data",), "seq": ("seq", "more"), "heads": ("model",), "layers": ("pipeline",)}
MESHES = [
    ("auto", {"data": 2, "seq": 2, "model": 2}),
    pytest.param("auto", {"more": 2, "seq": 4}, marks=pytest.mark.slow),  # axes in another order than in the rule
    pytest.param("auto", {"seq": 8}, marks=pytest.mark.slow),
    pytest.param("explicit", {"data": 2, "seq": 2, "model": 2}, marks=pytest.mark.slow),
    pytest.param("explicit", {"model": 2, "seq": 4}, marks=pytest.mark.slow),
]


def split(sizes: dict[str, int], axis_types: str = "auto") -> Preset:
    """A preset with these mesh axes, and those of `RULES` that they allow."""
    rules = {logical: [axis for axis in axes if axis in sizes] for logical, axes in RULES.items()}
    lines = [f'axis_types = "{axis_types}"', "[mesh]", *(f"{axis} = {size}" for axis, size in sizes.items())]
    lines += ["[rules]", *(f"{logical} = {axes}" for logical, axes in rules.items() if axes)]
    return parse_preset(Path("split.toml"), "\n".join(lines))


def weighted(kernel: AttentionKernel, query: Array, kv: Array, weights: Array) -> tuple[Array, Array]:
    out = attend(query, kv, kernel)
    return jnp.sum((out * weights).astype(jnp.float32)), out


@pytest.mark.parametrize(("axis_types", "sizes"), MESHES)
@pytest.mark.parametrize(
    ("kernel", "seq", "dtype", "tolerance"),
    [
        ("ring", 48, jnp.float32, 1e-5),
        pytest.param("ring", 2048, jnp.float32, 1e-5, marks=pytest.mark.slow),
        pytest.param("ring", 48, jnp.bfloat16, 2e-2, marks=pytest.mark.slow),
        pytest.param("ring-splash-interpreted", 2048, jnp.float32, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_the_ring_has_the_values_and_gradients_of_plain_attention(
    axis_types: str, sizes: dict[str, int], kernel: AttentionKernel, seq: int, dtype: type, tolerance: float
) -> None:
    """With 2,048 tokens there are several blocks in a chunk on two devices, and one on eight."""
    shapes = (2, seq, 2, 16), (2, seq, 2, 2, 16), (2, seq, 2, 16)
    inputs = [jax.random.normal(jax.random.key(number), shape, dtype) for number, shape in enumerate(shapes)]
    function = jax.value_and_grad(weighted, (1, 2), has_aux=True)
    expected = jax.jit(partial(function, "plain"))(*inputs)
    kind = AxisType.Explicit if axis_types == "explicit" else AxisType.Auto
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    with jax.set_mesh(mesh), activation_rules(mesh, split(sizes, axis_types).rules):
        found = jax.jit(partial(function, kernel))(*inputs)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, atol=tolerance * max(1, np.abs(other).max()))


@pytest.fixture(scope="module")
def ringed() -> tuple[Task, Program]:
    """A task, and its program under `dp-sp2`."""
    task = Task(attention_config("ring"), "cpu")
    return task, compile_program(task, place(task, load_preset("dp-sp2"), jax.devices()))


@pytest.mark.core
def test_losses_are_those_of_data_parallelism(ringed: tuple[Task, Program], plain: list[float]) -> None:
    np.testing.assert_allclose(losses_of(*ringed), plain, rtol=1e-5)


PRESETS = (
    load_preset("sp2"),
    split({"seq": 8}),
    split({"data": 2, "seq": 2, "pipeline": 2}),
    split({"data": 2, "seq": 2, "model": 2}, "explicit"),
)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_losses_in_other_layouts_are_those_of_data_parallelism(preset: Preset, plain: list[float]) -> None:
    np.testing.assert_allclose(losses(attention_config("ring"), preset), plain, rtol=1e-5)


@pytest.mark.core
def test_keys_go_round_and_no_device_holds_all_of_them(ringed: tuple[Task, Program]) -> None:
    """And the trace knows it, exactly."""
    (task, program), parts = ringed, 2
    assert program.description.attention == "ring" and program.description.collectives

    def over_seq(found: list[Flow]) -> dict[str, tuple[int | None, int]]:
        return {flow.kind: (flow.count, flow.bytes_sent) for flow in found if flow.axes == ["seq"]}

    traced = over_seq(traced_cost(task, program.placement.preset, 8, None, jax.devices()).collectives or [])
    compiled = over_seq(flows(program.description.collectives))
    assert compiled["collective-permute"] == traced["collective-permute"]
    assert set(compiled) == {"collective-permute", "all-reduce"}, "gradients of parameters, and no gathers"
    text = program.step.as_text()  # type: ignore[attr-defined]
    heads, seq = task.config.model.heads, task.config.training.seq_len  # type: ignore[union-attr]
    assert f"{heads},{seq // parts},{seq}]" not in text, "no scores of all keys"
    (info,) = [info for info in program.description.collectives if info.kind == "collective-permute"][:1]
    assert info.written and "ring_attention.py" in info.source


def test_a_ring_needs_an_even_number_of_tokens_on_each_device_and_splash_256() -> None:
    kernels = AttentionKernels("splash", "ring-splash")
    found = [kernels.of(seq, parts) for seq, parts in ((1024, 1), (1024, 4), (1024, 8), (1032, 8), (12, 4))]
    assert found == ["splash", "ring-splash", "ring", "plain", "plain"]
    assert AttentionKernels("plain", "plain").of(1024, 4) == "plain"


EXAMPLES, PART = BATCHES.batch_size // 4, BATCHES.seq_len // 2
"""Examples and positions of one device under `dp-sp2` and `sp2`."""


def test_only_keys_and_values_cross_the_sequence(task: Task, programs: dict[str, Program]) -> None:
    """Each layer gathers keys and values, and reduces their gradients; parameter gradients are reduced too.

    The CPU compiler sums over one axis after the other, and uses all-reduces for reduce-scatters.
    """
    collectives = programs["dp-sp2"].description.collectives
    assert collectives
    keys_and_values = WIDE.layers * 2 * EXAMPLES * BATCHES.seq_len * WIDE.embed * 4
    parameters = 4 * task.parameters
    assert total(collectives, "all-gather", "seq") == keys_and_values
    assert total(collectives, "all-reduce", "seq") == pytest.approx(parameters + keys_and_values, abs=64)
    assert total(collectives, "all-reduce", "data") == pytest.approx(parameters, abs=64)
    assert {(info.kind, *info.axes) for info in collectives} == {
        ("all-gather", "seq"),
        ("all-reduce", "seq"),
        ("all-reduce", "data"),
        ("all-reduce", "data", "seq"),  # of norms
    }


@pytest.mark.parametrize("preset", ["dp-sp2", pytest.param("sp2", marks=pytest.mark.slow)])
def test_attention_scores_cover_only_the_devices_own_queries(preset: str, programs: dict[str, Program]) -> None:
    text = programs[preset].step.as_text()  # type: ignore[attr-defined]
    scores = f"f32[{EXAMPLES},{WIDE.heads},{{}},{BATCHES.seq_len}]"
    assert scores.format(PART) in text
    assert scores.format(BATCHES.seq_len) not in text
