"""The GPT-2 decoder: its published sizes, its causality, and the effect of its options."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from shardtui.engine.models.decoder import Decoder, loss
from shardtui.engine.models.sizes import compute_dtype, flops_per_token
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.spec.model_choice import load_model

from ..conftest import tiny_config, tiny_model


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(tiny_config(), "cpu")


@pytest.fixture(scope="module")
def params(task: Task) -> dict[str, object]:
    return jax.jit(task.initial_state)().params


def tokens(*shape: int) -> jax.Array:
    return jax.random.randint(jax.random.key(1), shape, 0, 256)


def test_flops_match_the_published_formula() -> None:
    config = load_model("gpt2").model
    multiplying = 124_439_808 - 1024 * 768
    assert flops_per_token(config, 1024) == 6 * multiplying + 12 * 12 * 768 * 1024


def test_moments_take_the_logical_axes_of_their_parameter(task: Task) -> None:
    by_name = {array.names[0]: array for array in task.arrays}
    for name in ("blocks.mlp.up.kernel", "token.embedding", "norm.scale"):
        for moment in ("mu", "nu"):
            assert by_name[f"{moment}.{name}"].logical_axes == by_name[name].logical_axes


def test_logits_depend_only_on_earlier_tokens() -> None:
    with nnx.use_eager_sharding(False):
        model = Decoder(tiny_config().model, jnp.float32, nnx.Rngs(0))
    before = tokens(1, 16)
    after = before.at[0, 9].add(1)
    logits = nnx.jit(Decoder.__call__)
    differ = np.any(logits(model, before) != logits(model, after), axis=(0, 2))
    assert not differ[:9].any()
    assert differ[9:].all()


def test_loss_matches_optax_cross_entropy() -> None:
    logits = jax.random.normal(jax.random.key(0), (2, 5, 256))
    targets = tokens(2, 5)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    np.testing.assert_allclose(loss(logits, targets), expected, rtol=1e-6)


def test_padding_rows_do_not_affect_the_loss() -> None:
    with nnx.use_eager_sharding(False):
        model = Decoder(tiny_model(vocab_rows=384), jnp.float32, nnx.Rngs(0))
        logits = nnx.jit(Decoder.__call__)(model, tokens(1, 8))
    assert logits.shape == (1, 8, 384)
    assert np.isneginf(logits[..., 256:]).all()
    assert np.isfinite(loss(logits, tokens(1, 8)))


def test_remat_changes_no_gradient(task: Task, params: dict[str, object]) -> None:
    remat = Task(tiny_config(model=tiny_model(remat=True)), "cpu")
    batch, key = Batch(tokens(2, 16), tokens(2, 16)), jax.random.key(3)
    plain, again = (jax.jit(jax.grad(which.loss))(params, batch, key) for which in (task, remat))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, again)


def test_dropout_follows_the_key(params: dict[str, object]) -> None:
    task = Task(tiny_config(model=tiny_model(dropout=0.1)), "cpu")
    batch = Batch(tokens(2, 16), tokens(2, 16))
    keys = (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    loss = jax.jit(task.loss)
    values = [float(loss(params, batch, key)) for key in keys]
    assert values[0] == values[1]
    assert values[2] == values[3]
    assert len({values[0], values[2], values[4]}) == 3


def test_compute_dtype() -> None:
    config = tiny_config().model
    assert [compute_dtype(config, platform) for platform in ("cpu", "tpu")] == ["float32", "bfloat16"]
    low = Task(tiny_config(model=tiny_model(dtype="bfloat16")), "cpu")
    state = jax.jit(low.initial_state)()
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    jaxpr = str(jax.make_jaxpr(low.loss)(state.params, Batch(tokens(2, 16), tokens(2, 16)), None))
    assert "bf16[2,16,64]" in jaxpr


def test_training_lowers_the_loss(task: Task) -> None:
    state, step = jax.jit(task.initial_state)(), jax.jit(task.train_step)
    batch = Batch(tokens(8, 16), tokens(8, 16)[::-1])
    losses = []
    for _ in range(30):
        state, value = step(state, batch)
        losses.append(float(value))
    assert int(state.step) == len(losses)
    assert losses[-1] < losses[0] - 0.5
    assert abs(losses[0] - np.log(256)) < 0.2


def test_program_size_does_not_grow_with_depth() -> None:
    sizes = []
    for layers in (6, 12):
        task = Task(tiny_config(model=tiny_model(layers=layers)), "cpu")
        batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), task.batch_arrays)
        text = jax.jit(task.train_step).lower(task.abstract_state, batch).as_text()
        sizes.append(len(text.splitlines()))
    assert sizes[1] <= sizes[0] * 1.02
