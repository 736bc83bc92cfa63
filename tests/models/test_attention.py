"""Splash attention, interpreted on CPU, and rings over a split sequence, against plain attention: values, gradients,
losses under presets."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import AxisType
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.traffic import Flow, flows
from shardtui.engine.models.attention import rotated
from shardtui.engine.models.attention_kernels import ORDINARY, Scores, attend
from shardtui.engine.models.flops import flops
from shardtui.engine.models.sizes import AttentionKernels, attention_kernels
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.planning.step_trace import traced_cost
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_config import AttentionKernel, Rope
from shardtui.engine.spec.preset import Axes, Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import BATCHES, WIDE, tiny_config, tiny_model
from ..hlo.test_collectives import total
from .families import like

SEQ = 128
"""The shortest sequence that splash attention takes."""
CAPPED = Scores(scale=0.3, window=50, cap=3.0)
RULES: dict[str, Axes] = {"batch": ("data",), "seq": ("seq", "more"), "heads": ("model",), "layers": ("pipeline",)}


def attention_config(attention: str = "splash", seq_len: int = SEQ) -> RunConfig:
    model = tiny_model(attention=attention, context=max(SEQ, seq_len))
    training = TrainingConfig(batch_size=8, seq_len=seq_len, learning_rate=1e-2, warmup_steps=1)
    return tiny_config(model=model, training=training)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def preset_of(sizes: dict[str, int], axis_types: str = "auto", rules: dict[str, Axes] = RULES) -> Preset:
    found = {logical: [axis for axis in axes if axis in sizes] for logical, axes in rules.items()}
    lines = [f'axis_types = "{axis_types}"', "[mesh]", *(f"{axis} = {size}" for axis, size in sizes.items())]
    lines += ["[rules]", *(f"{logical} = {axes}" for logical, axes in found.items() if axes)]
    return parse_preset(Path("split.toml"), "\n".join(lines))


def weighted(kernel: AttentionKernel, scores: Scores, query: Array, kv: Array, weights: Array) -> tuple[Array, Array]:
    out = attend(query, kv, kernel, scores)
    return jnp.sum((out * weights).astype(jnp.float32)), out


def values_and_gradients(kernel: AttentionKernel, inputs: list[Array], scores: Scores = ORDINARY) -> list[np.ndarray]:
    function = jax.value_and_grad(partial(weighted, kernel, scores), (0, 1), has_aux=True)
    return [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]


def random_inputs(seq: int, heads: int, kv_heads: int, width: int, dtype: type) -> list[Array]:
    shapes = (2, seq, heads, width), (2, seq, 2, kv_heads, width), (2, seq, heads, width)
    return [jax.random.normal(jax.random.key(number), shape, dtype) for number, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_halves_of_heads_are_swapped_on_tpu_as_elsewhere(dtype: str) -> None:
    x, other = jax.random.normal(jax.random.key(0), (2, 2, 16, 4, 64)).astype(dtype)

    @partial(jax.jit, static_argnums=1)
    def turned(x: Array, is_on_tpu: bool) -> tuple[Array, Array]:
        end, back = jax.vjp(lambda x: rotated(x, Rope(), is_on_tpu), x)
        return end, *back(other)

    for found, expected in zip(turned(x, True), turned(x, False), strict=True):
        np.testing.assert_allclose(np.float32(found), np.float32(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("seq", "heads", "scores", "dtype", "tolerance"),
    [
        slow(2 * SEQ, 2, ORDINARY, jnp.float32, 1e-5),
        (SEQ, 4, CAPPED, jnp.float32, 1e-5),
        slow(SEQ, 2, ORDINARY, jnp.float32, 1e-5),
        slow(3 * SEQ, 4, CAPPED, jnp.float32, 1e-5),
        slow(3 * SEQ, 2, ORDINARY, jnp.bfloat16, 2e-2),
    ],
)
def test_splash_attention_has_the_values_and_gradients_of_plain_attention(
    seq: int, heads: int, scores: Scores, dtype: type, tolerance: float
) -> None:
    """In one block and in several, with windows, caps and grouped heads; bfloat16 has 8 bits."""
    inputs = random_inputs(seq, heads, 2, 32, dtype)
    expected, found = (values_and_gradients(kernel, inputs, scores) for kernel in ("plain", "splash-interpreted"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize(
    ("axis_types", "sizes"),
    [
        ("auto", {"data": 2, "seq": 2, "model": 2}),
        slow("auto", {"more": 2, "seq": 4}),  # axes in another order than in the rule
        slow("auto", {"seq": 8}),
        slow("explicit", {"data": 2, "seq": 2, "model": 2}),
        slow("explicit", {"model": 2, "seq": 4}),
    ],
)
@pytest.mark.parametrize(
    ("kernel", "seq", "dtype", "tolerance"),
    [
        ("ring", 48, jnp.float32, 1e-5),
        slow("ring", 2048, jnp.float32, 1e-5),
        slow("ring", 48, jnp.bfloat16, 2e-2),
        slow("ring-splash-interpreted", 2048, jnp.float32, 1e-5),
    ],
)
def test_the_ring_has_the_values_and_gradients_of_plain_attention(
    axis_types: str, sizes: dict[str, int], kernel: AttentionKernel, seq: int, dtype: type, tolerance: float
) -> None:
    """With 2,048 tokens there are several blocks in a chunk on two devices, and one on eight."""
    inputs = random_inputs(seq, 2, 2, 16, dtype)
    expected = values_and_gradients("plain", inputs)
    kind = AxisType.Explicit if axis_types == "explicit" else AxisType.Auto
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    with jax.set_mesh(mesh), activation_rules(mesh, preset_of(sizes, axis_types).rules):
        found = values_and_gradients(kernel, inputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * max(1, np.abs(other).max()))


@pytest.mark.core
def test_plain_attention_of_a_long_sequence_leaves_out_blocks_above_the_diagonal() -> None:
    """In values and gradients it is attention of all queries at once, with three eighths of the products left out."""
    seq, width = 2048, 8
    shapes = (1, seq, 1, width), (1, seq, 2, 1, width), (1, seq, 1, width)
    query, kv, weights = (jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes))

    def at_once(query: Array, kv: Array) -> Array:
        return jnp.sum(jax.nn.dot_product_attention(query, kv[:, :, 0], kv[:, :, 1], is_causal=True) * weights)

    def in_blocks(query: Array, kv: Array) -> Array:
        return jnp.sum(attend(query, kv, "plain") * weights)

    one, other = (jax.jit(jax.value_and_grad(each, (0, 1))) for each in (at_once, in_blocks))
    for expected, found in zip(*map(jax.tree.leaves, (one(query, kv), other(query, kv))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert flops(jax.make_jaxpr(at_once)(query, kv)) == 4 * seq * seq * width
    assert flops(jax.make_jaxpr(in_blocks)(query, kv)) == 4 * seq * seq * width * 5 / 8


@pytest.mark.slow
def test_long_sequences_leave_out_blocks_outside_the_window_but_no_token() -> None:
    query, kv = (jax.random.normal(jax.random.key(0), shape) for shape in ((1, 2048, 2, 8), (1, 2048, 2, 1, 8)))
    blocks = jax.jit(lambda query, kv: attend(query, kv, "plain", Scores(window=100)))(query, kv)
    whole = jax.nn.dot_product_attention(query, kv[:, :, 0], kv[:, :, 1], is_causal=True, local_window_size=(99, 0))
    np.testing.assert_allclose(blocks, whole, atol=1e-5)


def losses(config: RunConfig, preset: Preset) -> list[float]:
    task = Task(config, "cpu")
    return losses_of(task, compile_program(place(task, preset, jax.devices())))


def losses_of(task: Task, program: Program) -> list[float]:
    """Returns the losses of five steps on the same batch."""
    state = compile_initial_state(program.placement)()
    tokens = jax.random.randint(jax.random.key(0), (8, task.config.training.seq_len), 0, 256)
    batch = jax.device_put(Batch(tokens, jnp.roll(tokens, -1, 1)), program.placement.batch_shardings)
    found = []
    for _ in range(5):
        state, scalars = program.step(state, batch)
        found.append(float(scalars["loss"]))
    return found


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return losses(attention_config("plain"), load_preset("dp"))


NARROW: dict[str, Axes] = {"batch": ("data",), "keys": ("keys",), "head_dim": ("width",)}  # a kernel needs them whole
PRESETS = {
    "splash": [
        *map(load_preset, ("dp-tp2-pp2", "fsdp-tp2-explicit", "sp2")),
        *(preset_of({"data": 2, "keys": 2, "width": 2}, axis_types, NARROW) for axis_types in ("auto", "explicit")),
    ],
    "ring": [
        load_preset("sp2"),
        preset_of({"seq": 8}),
        preset_of({"data": 2, "seq": 2, "pipeline": 2}),
        preset_of({"data": 2, "seq": 2, "model": 2}, "explicit"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "preset"), [(attention, preset) for attention, presets in PRESETS.items() for preset in presets]
)
def test_losses_are_those_of_plain_attention(attention: str, preset: Preset, plain: list[float]) -> None:
    assert plain[-1] < plain[0] - 0.1, "it trains"
    np.testing.assert_allclose(losses(attention_config(attention), preset), plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("attention", "target", "seq", "settings", "whole", "split"),
    [
        ("auto", "cpu", 1024, {}, "plain", "plain"),
        ("auto", "tpu", 1024, {}, "splash", "ring-splash"),
        ("auto", "tpu", 1000, {}, "plain", "ring-splash"),
        ("auto", "tpu", SEQ, {"window": 8}, "splash", "plain"),
        ("plain", "tpu", 1024, {}, "plain", "plain"),
        ("splash", "tpu", 1024, {}, "splash", "ring-splash"),
        ("splash", "cpu", 1024, {}, "splash-interpreted", "ring"),
        ("ring", "cpu", 1024, {}, "plain", "ring"),
        ("ring", "tpu", 1024, {}, "splash", "ring-splash"),
        ("auto", "gpu 8.0", SEQ, {}, "cudnn", "ring"),
        ("auto", "gpu 9.0", SEQ, {"heads": 1, "embed": 128}, "cudnn", "ring"),
        ("auto", "gpu 9.0", SEQ, {"window": 8}, "plain", "plain"),
        ("ring", "gpu 10.3", SEQ, {}, "cudnn", "ring"),
        ("cudnn", "gpu 9.0", SEQ, {}, "cudnn", "ring"),
        ("auto", "gpu 7.5", SEQ, {}, "plain", "ring"),
        ("auto", "gpu gfx90a", SEQ, {}, "plain", "ring"),
        ("plain", "gpu 9.0", SEQ, {}, "plain", "plain"),
        ("auto", "gpu 9.0", SEQ, {"dtype": "float32"}, "plain", "ring"),
        ("auto", "gpu 9.0", SEQ, {"heads": 8}, "plain", "ring"),
        ("auto", "gpu 9.0", SEQ, {"heads": 1, "embed": 136}, "plain", "ring"),
    ],
)
def test_the_kernel_follows_from_the_platform_the_sequence_the_dtype_and_the_heads(
    attention: str, target: str, seq: int, settings: dict[str, Any], whole: AttentionKernel, split: AttentionKernel
) -> None:
    platform, _, capability = target.partition(" ")
    model = tiny_model(attention=attention, **{"heads": 4, **settings})
    assert attention_kernels(model, platform, seq, capability) == AttentionKernels(whole, split)


def test_kernels_refuse_the_platforms_sequences_and_scores_that_they_cannot_compute() -> None:
    config = attention_config("cudnn")
    (problem,) = problems_of(config)
    assert problem.startswith("embed 32 ÷ heads 8: cuDNN's attention takes heads of a multiple of 8 up to 128")
    with pytest.raises(UserError, match=r"needs a GPU of NVIDIA .* the platform is cpu: add --set attention=auto"):
        Task(config, "cpu")
    assert problems_of(attention_config()) == problems_of(attention_config("auto", seq_len=100)) == []
    (problem,) = problems_of(attention_config(seq_len=100))
    assert problem.startswith("--seq-len 100: splash attention takes multiples of 128")
    for kernel in ("cudnn", "ring"):
        (problem,) = problems_of(tiny_config(model=like(attention=kernel, score_cap=5.0)))
        assert problem == f"attention {kernel}: it computes no windows and no capped scores: add --set attention=auto"


@pytest.mark.core
def test_keys_go_round_and_no_device_holds_all_of_them(plain: list[float]) -> None:
    task, parts = Task(attention_config("ring"), "cpu"), 2
    program = compile_program(place(task, load_preset("dp-sp2"), jax.devices()))
    np.testing.assert_allclose(losses_of(task, program), plain, rtol=1e-5)
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
    kinds = {("all-gather", "seq"), ("all-reduce", "seq"), ("all-reduce", "data"), ("all-reduce", "data", "seq")}
    assert {(info.kind, *info.axes) for info in collectives} == kinds, "the last is of norms"


@pytest.mark.parametrize("preset", ["dp-sp2", pytest.param("sp2", marks=pytest.mark.slow)])
def test_attention_scores_cover_only_the_devices_own_queries(preset: str, programs: dict[str, Program]) -> None:
    text = programs[preset].step.as_text()  # type: ignore[attr-defined]
    scores = f"f32[{EXAMPLES},{WIDE.heads},{{}},{BATCHES.seq_len}]"
    assert scores.format(PART) in text
    assert scores.format(BATCHES.seq_len) not in text
