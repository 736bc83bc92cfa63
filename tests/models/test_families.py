"""What families do differently from GPT-2: sizes, positions, windows and grouped heads."""

from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.model_config import ModelConfig, Rope
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import tiny_config, tiny_model
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
