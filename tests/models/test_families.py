"""What families do differently from GPT-2: sizes, positions, windows, grouped heads, experts, and live switches."""

from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.attention_kernels import Scores, attend
from shardtui.engine.models.experts import route, weights_of_all
from shardtui.engine.models.sizes import AttentionKernels, attention_kernels
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.model_config import ModelConfig, Rope
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import tiny_config, tiny_model
from ..training.test_loop import assert_same_losses
from .families import FAMILIES, GEMMA3, like, logits_of

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma3-4b": 3_880_263_168,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "olmo2-7b": 7_298_617_344,
}


def config_of(model: ModelConfig, seq_len: int = 16) -> RunConfig:
    return tiny_config(model=model, training=TrainingConfig(batch_size=8, seq_len=seq_len))


def flops_of(model: ModelConfig) -> float:
    """Returns the FLOPs per token of sequences of 16."""
    config = config_of(model)
    return Task(config, "cpu").flops_per_step / config.training.tokens_per_step


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_match_the_published_ones(name: str) -> None:
    config = config_of(load_model(name).model)
    assert Task(config, "cpu").parameters == PUBLISHED[name]
    assert problems_of(config) == []


def test_padding_is_no_parameter_and_arrays_have_logical_axes_and_flops_those_of_heads_and_windows() -> None:
    plain, padded = (Task(config_of(like(vocab_rows=rows)), "cpu") for rows in (256, 384))
    assert (plain.parameters, plain.model.padding_parameters) == (padded.parameters, 0)
    assert padded.model.padding_parameters == 2 * (384 - 256) * 32, "of the embedding and the output layer"
    full, local = (flops_of(config) for config in (msgspec.structs.replace(GEMMA3, window=0), GEMMA3))
    assert full - local == 12 * 2 * 4 * 16 * (16 - 5), "two of three layers see 5 of 16 positions"
    kernels = 2 * (2 * 32 * 8 * (4 + 1) + 3 * 32 * 64)
    assert flops_of(like(kv_heads=1)) == 6 * (kernels + 256 * 32) + 12 * 2 * 4 * 8 * 16
    assert flops_of(like(kv_heads=1, biases="all", query_norm="full", norm="layer")) == flops_of(like(kv_heads=1))
    for name, config in {**FAMILIES, "gpt2": tiny_model()}.items():
        arrays = [array for array in Task(config_of(config), "cpu").arrays if array.shape]
        assert all(None not in array.logical_axes and len(array.logical_axes) == len(array.shape) for array in arrays)
        assert {array.kind for array in arrays} == {"parameter", "moment", "batch"}, name


def test_tokens_see_their_window_and_no_later_token_by_relative_positions() -> None:
    config = like(layers=1, window=4)
    logits, tokens = logits_of(config), np.random.default_rng(1).integers(0, 256, (1, 24))
    after = tokens.copy()
    after[0, 5] ^= 1
    differ = np.any(logits(tokens) != logits(after), axis=(0, 2))
    assert differ.tolist() == [5 <= position < 5 + 4 for position in range(24)]
    np.testing.assert_allclose(logits(tokens)[:, 8:], logits(tokens[:, 5:])[:, 3:], atol=1e-5)


@pytest.mark.slow
def test_long_sequences_leave_out_blocks_outside_the_window_but_no_token() -> None:
    query, kv = (jax.random.normal(jax.random.key(0), shape) for shape in ((1, 2048, 2, 8), (1, 2048, 2, 1, 8)))
    blocks = jax.jit(lambda query, kv: attend(query, kv, "plain", Scores(window=100)))(query, kv)
    whole = jax.nn.dot_product_attention(query, kv[:, :, 0], kv[:, :, 1], is_causal=True, local_window_size=(99, 0))
    np.testing.assert_allclose(blocks, whole, atol=1e-5)
    windows = like(attention="auto", window=8, head_width=8)
    assert attention_kernels(windows, "tpu", 128) == AttentionKernels("splash", "plain")
    assert attention_kernels(windows, "gpu", 128, "9.0") == AttentionKernels("plain", "plain")
    assert attention_kernels(like(head_width=8), "gpu", 128, "9.0") == AttentionKernels("cudnn", "ring")
    for kernel in ("cudnn", "ring"):
        (problem,) = problems_of(config_of(like(attention=kernel, score_cap=5.0)))
        assert problem == f"attention {kernel}: it computes no windows and no capped scores: add --set attention=auto"
    # The weights are those of a capacity that suffices for all tokens.
    probabilities = jax.nn.softmax(jax.random.normal(jax.random.key(0), (3, 12, 4)))
    routing = route(probabilities, per_token=2, capacity=12)
    weights, balance = weights_of_all(probabilities, per_token=2)
    np.testing.assert_allclose(weights, routing.combine.sum(axis=-1), atol=1e-6)
    np.testing.assert_allclose(balance, routing.balance)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)


def test_kv_heads_are_split_like_heads_and_stages_have_whole_periods() -> None:
    task, tp = Task(config_of(like(heads=8)), "cpu"), load_preset("tp")
    with pytest.raises(UserError, match=r"kv_heads: rule → model \(8\): kv_heads 2 does not divide by 8: make it 8"):
        place(task, tp, jax.devices())
    text = '[mesh]\nmodel = 8\n[rules]\nheads = "model"\nmlp = "model"\nkv_heads = ""\n'
    placement = place(task, parse_preset(Path("grouped.toml"), text), jax.devices())
    kv = placement.state.params["blocks"]["attention"]["kv"]["kernel"]
    assert [dim.axes for dim in kv.dims] == [()] * 5
    task = Task(config_of(msgspec.structs.replace(GEMMA3, layers=6)), "cpu")
    with pytest.raises(
        UserError, match="3 layers in each pass of a stage are not whole periods of the model's 2 altern"
    ):
        place(task, load_preset("pp2"), jax.devices())
    bad = like(kv_heads=3, head_width=5, rope=Rope(scaling="yarn", factor=0.0), global_every=2)
    found = problems_of(config_of(bad))
    expected = ["heads 4 does not divide by kv_heads 3", "heads of width 5", "global_every 2", "rope", "rope"]
    assert [problem.partition(":")[0] for problem in found] == expected


ROUTE = {1: "fsdp", 2: "dp-tp2", 3: "fsdp-tp2-explicit", 4: "dp"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-moe"])
def test_switches_change_no_loss(name: str, tmp_path: Path) -> None:
    task = Task(config_of(msgspec.structs.replace(FAMILIES[name], dropout=0.1)), "cpu")
    presets = [load_preset(preset) for preset in ("dp", *ROUTE.values())]
    programs = {preset.name: compile_program(task, place(task, preset, jax.devices())) for preset in presets}
    assert_same_losses(task, programs, tmp_path, ROUTE)
