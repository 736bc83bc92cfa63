"""The GPT-2 decoder: its published sizes, its causality, and the effect of its options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shardtui.engine.models.decoder import loss
from shardtui.engine.models.flops import flops
from shardtui.engine.models.sizes import compute_dtype
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.spec.model_config import KEPT
from shardtui.engine.spec.preset_reader import load_preset

from ..conftest import built_in_task, tiny_config, tiny_model
from .families import logits_of
from .test_attention import losses


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
    jaxpr = str(jax.make_jaxpr(low.loss)(state.params, Batch(tokens(2, 16), tokens(2, 16)), None))
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
    plain, again = (jax.jit(jax.grad(task.loss))(params, batch, jax.random.key(3)) for task in tasks[:2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, again)
    loss = jax.jit(tasks[2].loss)
    keys = (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    values = [float(loss(params, batch, key)) for key in keys]
    assert values[0] == values[1]
    assert values[2] == values[3]
    assert len({values[0], values[2], values[4]}) == 3


def computed(remat: bool | str) -> float:
    task, batch = task_of(remat), Batch(tokens(8, 16), tokens(8, 16))
    return flops(jax.make_jaxpr(jax.grad(task.loss))(task.abstract_state.params, batch, jax.random.key(0)))


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remat", "preset"),
    [
        ("minimal", "fsdp-tp2"),
        ("save_dot_except_mlpwi", "pp2"),
        ("minimal_with_context", "fsdp-tp2-explicit"),
        ("save_qkv_proj", "sp2"),
    ],
)
def test_a_policy_changes_no_loss(remat: str, preset: str) -> None:
    found, expected = (losses(task_of(each).config, load_preset(preset)) for each in (remat, False))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
