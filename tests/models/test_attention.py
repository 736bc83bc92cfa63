"""Splash attention, interpreted on CPU, against plain attention: values, gradients, losses under presets."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.attention_kernels import Scores, attend
from shardtui.engine.models.flops import flops
from shardtui.engine.models.sizes import AttentionKernels, attention_kernels
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_config import AttentionKernel
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import tiny_config, tiny_model

SEQ = 128
"""The shortest sequence that splash attention takes."""


def attention_config(attention: str = "splash", seq_len: int = SEQ) -> RunConfig:
    model = tiny_model(attention=attention, context=max(SEQ, seq_len))
    return tiny_config(
        model=model, training=TrainingConfig(batch_size=8, seq_len=seq_len, learning_rate=1e-2, warmup_steps=1)
    )


CAPPED = Scores(scale=0.3, window=50, cap=3.0)


@pytest.mark.parametrize(
    ("seq", "heads", "scores", "dtype", "tolerance"),
    [
        (2 * SEQ, 2, Scores(), jnp.float32, 1e-5),
        (SEQ, 4, CAPPED, jnp.float32, 1e-5),
        pytest.param(SEQ, 2, Scores(), jnp.float32, 1e-5, marks=pytest.mark.slow),
        pytest.param(3 * SEQ, 4, CAPPED, jnp.float32, 1e-5, marks=pytest.mark.slow),
        pytest.param(3 * SEQ, 2, Scores(), jnp.bfloat16, 2e-2, marks=pytest.mark.slow),
    ],
)
def test_splash_attention_has_the_gradients_of_plain_attention(
    seq: int, heads: int, scores: Scores, dtype: type, tolerance: float
) -> None:
    """In one block and in several, with windows, caps and grouped heads; bfloat16 has 8 bits."""
    shapes = (2, seq, heads, 32), (2, seq, 2, 2, 32), (2, seq, heads, 32)
    query, kv, weights = (
        jax.random.normal(jax.random.key(number), shape, dtype) for number, shape in enumerate(shapes)
    )

    def weighted(kernel: AttentionKernel, query: Array, kv: Array) -> Array:
        return jnp.sum((attend(query, kv, kernel, scores) * weights).astype(jnp.float32))

    kernels: tuple[AttentionKernel, ...] = ("plain", "splash-interpreted")
    results = (jax.jit(jax.value_and_grad(partial(weighted, kernel), (0, 1)))(query, kv) for kernel in kernels)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(other, one, atol=tolerance * np.abs(one).max())


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


def losses(config: RunConfig, preset: Preset) -> list[float]:
    task = Task(config, "cpu")
    return losses_of(task, compile_program(task, place(task, preset, jax.devices())))


def losses_of(task: Task, program: Program) -> list[float]:
    """Returns the losses of five steps on the same batch."""
    state = compile_initial_state(task, program.placement)()
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


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dp-tp2-pp2", "fsdp", "tp", "fsdp-tp2-explicit", "pp2", "sp2", "hsdp"])
def test_losses_are_those_of_plain_attention(preset: str, plain: list[float]) -> None:
    assert plain[-1] < plain[0] - 0.1, "it trains"
    np.testing.assert_allclose(losses(attention_config(), load_preset(preset)), plain, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_dims_that_a_kernel_needs_whole_may_be_split_outside_it(axis_types: str, plain: list[float]) -> None:
    text = f'axis_types = "{axis_types}"\n[mesh]\ndata = 2\nkeys = 2\nwidth = 2\n'
    text += '[rules]\nbatch = "data"\nkeys = "keys"\nhead_dim = "width"\n'
    preset = parse_preset(Path("narrow.toml"), text)
    np.testing.assert_allclose(losses(attention_config(), preset), plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("attention", "platform", "seq", "whole", "split"),
    [
        ("auto", "cpu", 1024, "plain", "plain"),
        ("auto", "tpu", 1024, "splash", "ring-splash"),
        ("auto", "tpu", 1000, "plain", "ring-splash"),
        ("plain", "tpu", 1024, "plain", "plain"),
        ("splash", "tpu", 1024, "splash", "ring-splash"),
        ("splash", "cpu", 1024, "splash-interpreted", "ring"),
        ("ring", "cpu", 1024, "plain", "ring"),
        ("ring", "tpu", 1024, "splash", "ring-splash"),
    ],
)
def test_the_kernel_follows_from_platform_and_sequence(
    attention: str, platform: str, seq: int, whole: AttentionKernel, split: AttentionKernel
) -> None:
    kernels = attention_kernels(tiny_model(attention=attention), platform, seq)
    assert kernels == AttentionKernels(whole, split)


@pytest.mark.parametrize(
    ("attention", "capability", "settings", "kernel"),
    [
        ("auto", "8.0", {}, "cudnn"),
        ("auto", "9.0", {"heads": 1, "embed": 128}, "cudnn"),
        ("ring", "10.3", {}, "cudnn"),
        ("cudnn", "9.0", {}, "cudnn"),
        ("auto", "7.5", {}, "plain"),
        ("auto", "gfx90a", {}, "plain"),
        ("plain", "9.0", {}, "plain"),
        ("auto", "9.0", {"dtype": "float32"}, "plain"),
        ("auto", "9.0", {"heads": 8}, "plain"),
        ("auto", "9.0", {"heads": 1, "embed": 136}, "plain"),
    ],
)
def test_the_kernel_on_a_gpu_follows_from_the_gpu_the_dtype_and_the_heads(
    attention: str, capability: str, settings: dict[str, Any], kernel: AttentionKernel
) -> None:
    """Chosen on paper: no GPU runs here."""
    model = tiny_model(attention=attention, **{"heads": 4, **settings})
    assert attention_kernels(model, "gpu", SEQ, capability) == AttentionKernels(
        kernel, "plain" if attention == "plain" else "ring"
    )


def test_cudnn_without_a_gpu_and_a_sequence_that_no_block_divides_are_refused() -> None:
    config = attention_config("cudnn")
    (problem,) = problems_of(config)
    assert problem.startswith("embed 32 ÷ heads 8: cuDNN's attention takes heads of a multiple of 8 up to 128")
    with pytest.raises(UserError, match=r"needs a GPU of NVIDIA .* the platform is cpu: add --set attention=auto"):
        Task(config, "cpu")
    assert problems_of(attention_config()) == problems_of(attention_config("auto", seq_len=100)) == []
    (problem,) = problems_of(attention_config(seq_len=100))
    assert problem.startswith("--seq-len 100: splash attention takes multiples of 128")
