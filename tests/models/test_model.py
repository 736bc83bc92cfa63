"""The decoder, of GPT-2 and of later families: sizes, FLOPs, heads, and its options; tests/oracle has the values."""

from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.decoder import loss
from shardtui.engine.models.flops import flops
from shardtui.engine.models.sizes import compute_dtype
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.model_config import KEPT, ModelConfig, Rope
from shardtui.engine.spec.preset_reader import load_preset, parse_preset

from ..conftest import built_in_task, tiny_config, tiny_model
from ..suite import loss_of
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


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.int32)


def test_padding_does_not_affect_the_loss_nor_depth_the_size_and_flops_and_dtype_are_as_published() -> None:
    logits = logits_of(tiny_model(vocab_rows=384))(tokens(1, 8))
    assert logits.shape == (1, 8, 384)
    assert np.isneginf(logits[..., 256:]).all()
    assert np.isfinite(jax.jit(loss)(logits, tokens(1, 8)))
    kernels = 12 * 12 * 768**2
    gpt2 = built_in_task("gpt2", "batch_size=1", "seq_len=1024")
    assert gpt2.flops_per_step == 1024 * (6 * (kernels + 50257 * 768) + 12 * 12 * 768 * 1024)
    config = tiny_config().model
    assert [compute_dtype(config, platform) for platform in ("cpu", "tpu")] == ["float32", "bfloat16"]
    low = Task(tiny_config(model=tiny_model(dtype="bfloat16")), "cpu")
    state = jax.jit(low.initial_state)()
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    jaxpr = str(jax.make_jaxpr(loss_of(low))(state.params, Batch(tokens(2, 16), tokens(2, 16)), None))
    assert "bf16[2,16,64]" in jaxpr
    sizes = []
    for layers in (6, 12):
        task = Task(tiny_config(model=tiny_model(layers=layers)), "cpu")
        batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), task.batch_arrays)
        text = jax.jit(task.train_step).lower(task.abstract_state, batch).as_text()
        sizes.append(len(text.splitlines()))
    assert sizes[1] <= sizes[0] * 1.02


def task_of(remat: bool | str, dropout: float = 0.0) -> Task:
    return Task(tiny_config(model=tiny_model(remat=remat, dropout=dropout)), "cpu")


@pytest.mark.core
def test_remat_changes_no_gradient_and_dropout_follows_the_key() -> None:
    tasks = (task_of(False), task_of(True), task_of(False, dropout=0.1))
    params = jax.jit(tasks[0].initial_state)().params
    batch = Batch(tokens(2, 16), tokens(2, 16))
    plain, again = (jax.jit(jax.grad(loss_of(task)))(params, batch, jax.random.key(3)) for task in tasks[:2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, again)
    loss = jax.jit(loss_of(tasks[2]))
    keys = (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    values = [float(loss(params, batch, key)) for key in keys]
    assert values[0] == values[1]
    assert values[2] == values[3]
    assert len({values[0], values[2], values[4]}) == 3


def computed(remat: bool | str) -> float:
    task, batch = task_of(remat), Batch(tokens(8, 16), tokens(8, 16))
    return flops(jax.make_jaxpr(jax.grad(loss_of(task)))(task.abstract_state.params, batch, jax.random.key(0)))


@pytest.mark.core
def test_a_policy_recomputes_less_the_more_it_keeps() -> None:
    embed, mlp, seq, tokens = 32, 64, 16, 8 * 16 * 2  # in two layers
    per_token = {
        "qkv_proj": 6 * embed * embed,
        "out_proj": 2 * embed * embed,
        "context": 2 * seq * embed,  # the scores are computed all the same
        "mlpwi": 2 * embed * mlp,
        "mlpwo": 0,  # remat never needs it
    }
    full = computed("full")
    assert computed(True) == full
    scores = 2 * seq * embed
    assert computed(False) == full - tokens * (sum(per_token.values()) + scores)
    for name, kept in KEPT.items():
        assert computed(name) == full - tokens * sum(per_token[each] for each in kept), name
