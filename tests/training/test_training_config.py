"""What a training config asks for: schedules, optimizers and their state, z-loss, accumulated gradients."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.optimizer import MUON_RMS, learning_rate, optimizer
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.planning.step_trace import arguments
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state, compile_program
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import EvaluationConfig, RunConfig, TrainingConfig
from shardtui.engine.spec.model_config import Rope
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.training_words import training_words

from ..conftest import tiny_config, tiny_model
from ..suite import loss_of

SLOW = pytest.mark.slow
OTHERS = ("adafactor", "lion", "muon")


def config(model: dict[str, Any] | None = None, **training: Any) -> RunConfig:
    changed = msgspec.structs.replace(tiny_config().training, **training)
    return tiny_config(model=tiny_model(**(model or {})), training=changed)


def batch(number: int, size: int = 8, seq: int = 16) -> Batch:
    tokens = jax.random.randint(jax.random.key(number), (size, seq + 1), 0, 256)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def rates(steps: int, **training: Any) -> np.ndarray[Any, Any]:
    schedule = learning_rate(TrainingConfig(batch_size=1, seq_len=1, **training))
    return np.array([schedule(jnp.asarray(step)) for step in range(steps)])


def test_schedules_are_those_of_optax_or_fall_to_the_final_share() -> None:
    linear = optax.linear_schedule(0.0, 2e-3, 4)
    found = rates(9, learning_rate=2e-3, warmup_steps=4)
    np.testing.assert_array_equal(found, [linear(step + 1) for step in range(9)])
    cosine = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 3, 3 + 8, 1e-4)
    found = rates(15, warmup_steps=3, schedule="cosine", decay_steps=8, final_share=0.1)
    np.testing.assert_allclose(found, [cosine(step + 1) for step in range(15)], rtol=1e-6)
    found = rates(12, learning_rate=1.0, warmup_steps=2, schedule="linear", decay_steps=4, final_share=0.2)
    np.testing.assert_allclose(found[:7], [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)
    stable = {"schedule": "warmup-stable-decay", "stable_steps": 3, "decay_steps": 2}
    found = rates(9, learning_rate=1.0, warmup_steps=2, **stable)
    np.testing.assert_allclose(found, [0.5, 1, 1, 1, 1, 0.5, 0, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"schedule": "cosine"}, "decay_steps is missing"),
        ({"decay_steps": 5}, "a constant schedule has no decay"),
        ({"schedule": "linear", "decay_steps": 5, "stable_steps": 2}, "schedule linear has none"),
        ({"final_share": 2.0}, "final_share 2.0: must be from 0 to 1"),
        ({"weight_decay": math.nan}, "weight_decay nan: must be 0 or more"),
        ({"z_loss": math.inf}, "z_loss inf: must be at most 2,147,483,647"),
        ({"warmup_steps": 2**31}, "warmup_steps 2147483648: must be at most 2,147,483,647"),
        ({"learning_rate": math.inf}, "learning_rate inf: must be above 0, and finite"),
        ({"grad_clip": math.inf}, "grad_clip inf: must be above 0, and finite"),
        ({"model": {"heads": 0}}, "heads 0: must be at least 1"),
        ({"optimizer": "adafactor", "moment_dtype": "bfloat16"}, "adafactor has no first moment"),
        ({"accumulate_steps": 3}, "--batch-size 8 does not divide by it: use a divisor of 8, or a batch of 9"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(training: dict[str, Any], message: str) -> None:
    problems = problems_of(config(**training))
    assert len(problems) == 1
    assert message in problems[0]


def test_numbers_that_json_does_not_have_are_refused() -> None:
    """They become null in a run's configuration, which means no number or cannot be read."""
    rope = Rope(scaling="yarn", original_context=8)
    known = tiny_config(model=tiny_model(rope=rope, local_rope=rope), evaluation=EvaluationConfig(share=0.1))
    assert problems_of(known) == []
    changed = [(path, value) for path in numbers_in(known) for value in (math.inf, -math.inf, math.nan)]
    assert len(changed) > 60
    assert [path for path, value in changed if not problems_of(with_number(known, path, value))] == []


def numbers_in(config: msgspec.Struct) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if float in (field.type, *get_args(field.type)):
            yield (field.name,)
        elif isinstance(value, msgspec.Struct):
            yield from ((field.name, *inner) for inner in numbers_in(value))


def with_number(config: Any, path: Sequence[str], value: float) -> Any:
    name, *inner = path
    return msgspec.structs.replace(
        config, **{name: with_number(getattr(config, name), inner, value) if inner else value}
    )


def by_optax(name: str) -> optax.GradientTransformation:
    """The optimizer of the default training, in optax's own terms, for one kernel [L, D, F] and one bias [L, F]."""
    rate, decay = learning_rate(tiny_config().training), 0.1
    mask = {"kernel": True, "bias": False}
    scaled = optax.add_decayed_weights(lambda step: -decay * rate(step), mask)
    dims = {"kernel": optax.contrib.MuonDimensionNumbers(1, 2), "bias": None}
    named = {
        "adamw": [optax.adamw(rate, b2=0.95, weight_decay=decay, mask=mask)],
        "lion": [optax.lion(rate, weight_decay=decay, mask=mask)],
        "adafactor": [optax.adafactor(rate), scaled],
        "muon": [
            optax.contrib.muon(rate, adam_b2=0.95, consistent_rms=MUON_RMS, muon_weight_dimension_numbers=dims),
            scaled,
        ],
    }
    return optax.chain(optax.clip_by_global_norm(1.0), *named[name])


@pytest.mark.parametrize("name", ["adamw", *OTHERS])
def test_optimizers_are_those_of_optax_and_only_matrices_decay(name: str) -> None:
    axes = {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}
    own = optimizer(config(optimizer=name, decay_mask="matrices").training, axes)
    params = {"kernel": jax.random.normal(jax.random.key(0), (2, 128, 256)), "bias": jnp.ones((2, 256))}
    ends = []
    for each in (own, by_optax(name)):
        end, state = params, each.init(params)
        for number in range(3):
            keys = iter(jax.random.split(jax.random.key(number)))
            gradients = jax.tree.map(lambda x, keys=keys: jax.random.normal(next(keys), x.shape), end)
            updates, state = jax.jit(each.update)(gradients, state, end)
            end = optax.apply_updates(end, updates)
        ends.append(end)
    jax.tree.map(np.testing.assert_array_equal, *ends)


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_an_optimizer_is_laid_out_like_its_parameters(name: str) -> None:
    task = Task(config({"embed": 128, "mlp": 256}, optimizer=name), "cpu")
    placement = place(task, load_preset("fsdp-tp2"), jax.devices())
    specs = {
        array.names[0].rpartition("state.")[2]: (decision.spec, array.shape)
        for array, decision in zip(task.arrays, jax.tree.leaves((placement.state, placement.batch)), strict=True)
    }
    up = specs["blocks.mlp.up.kernel"]
    assert up == (PartitionSpec(None, "fsdp", "model"), (2, 128, 256))
    if name == "adafactor":
        assert specs["v_row.blocks.mlp.up.kernel"] == (PartitionSpec(None, "fsdp"), (2, 128))
        assert specs["v_col.blocks.mlp.up.kernel"] == (PartitionSpec(None, "model"), (2, 256))
        assert specs["v.blocks.mlp.up.bias"][0] == specs["blocks.mlp.up.bias"][0]
    else:
        assert specs["mu.blocks.mlp.up.kernel"] == up


def test_planning_counts_the_state_of_every_optimizer() -> None:
    sizes = {}
    for name in ("adamw", *OTHERS):
        task = Task(config({"embed": 128, "mlp": 256}, optimizer=name), "cpu")
        preset = load_preset("fsdp")
        sizes[name] = place(task, preset, jax.devices()).argument_bytes
        assert sum(arguments(task, preset, 8).values()) == sizes[name]
    assert sizes["adafactor"] < sizes["lion"] < sizes["muon"] < sizes["adamw"]


def losses(task: Task, presets: tuple[str, ...], steps: int = 2) -> list[float]:
    found: list[float] = []
    state = None
    for name in presets:
        placement = place(task, load_preset(name), jax.devices())
        program = compile_program(placement)
        if state is None:
            state = compile_initial_state(placement)()
        else:
            state = jax.device_put(state, placement.state_shardings)
        for _ in range(steps):
            inputs = jax.device_put(batch(len(found), task.config.training.batch_size), placement.batch_shardings)
            state, scalars = program.step(state, inputs)
            found.append(float(scalars["loss"]))
    return found


@SLOW
@pytest.mark.parametrize("name", OTHERS)
def test_losses_of_every_optimizer_survive_a_live_switch(name: str) -> None:
    task = Task(config(optimizer=name, learning_rate=1e-2, warmup_steps=1), "cpu")
    np.testing.assert_allclose(losses(task, ("fsdp-tp2-explicit", "tp")), losses(task, ("dp",), 4), rtol=1e-5)


@SLOW
@pytest.mark.parametrize("preset", ["dp", "fsdp-tp2", "fsdp-tp2-explicit"])
def test_accumulated_losses_are_those_of_the_large_batch(preset: str) -> None:
    model, training = {"dropout": 0.1}, {"batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 1}
    whole = losses(Task(config(model, **training), "cpu"), (preset,), 3)
    parts = losses(Task(config(model, **training, accumulate_steps=4), "cpu"), (preset,), 3)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_presets_that_cannot_accumulate_say_what_to_do_and_z_loss_is_not_reported() -> None:
    task = Task(config(batch_size=16, accumulate_steps=4), "cpu")
    with pytest.raises(UserError, match=r"batch 16 ÷ data \(8\) = 2 does not divide by it: .* a batch of 32"):
        place(task, load_preset("dp"), jax.devices())
    with pytest.raises(UserError, match="a pipeline has micro-batches of its own: set microbatches"):
        place(task, load_preset("pp2"), jax.devices())
    plain, with_z = (Task(config(z_loss=weight), "cpu") for weight in (0.0, 0.5))
    params = jax.jit(plain.initial_state)().params
    minimised, (scalars, _) = jax.jit(with_z.outcome)(params, {}, batch(0), None)
    assert float(scalars["loss"]) == pytest.approx(float(jax.jit(loss_of(plain))(params, batch(0), None)), rel=1e-6)
    assert minimised == pytest.approx(float(scalars["loss"]) + 0.5 * np.log(256) ** 2, rel=1e-2)
    assert minimised == pytest.approx(float(scalars["loss"] + 0.5 * scalars["z_loss"]))


def test_moments_have_the_dtype_asked_for_and_what_differs_from_the_defaults_is_named() -> None:
    task = Task(config(moment_dtype="bfloat16"), "cpu")
    dtypes = {array.names[0].split(".")[0]: array.dtype.name for array in task.arrays if array.kind == "moment"}
    assert dtypes == {"mu": "bfloat16", "nu": "float32"}
    assert training_words(config()) == ""
    assert training_words(config({"remat": "minimal"})) == "remat minimal"
    changed = config(optimizer="lion", schedule="cosine", decay_steps=2000, final_share=0.1, accumulate_steps=4)
    assert training_words(changed) == "lion, cosine to 10 % over 2,000 steps, 4 micro-batches"
