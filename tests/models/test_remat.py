"""Remat policies change no gradient, and recompute less the more they keep."""

from typing import Any

import jax
import numpy as np
import pytest
from shardtui.engine.models.flops import flops
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.planning.estimate import estimate_row
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state, compile_program
from shardtui.engine.spec.model_config import KEPT
from shardtui.engine.spec.preset_reader import load_preset

from ..conftest import tiny_config, tiny_model


def task_of(remat: Any, **changes: Any) -> Task:
    return Task(tiny_config(model=tiny_model(remat=remat, **changes)), "cpu")


def batch() -> Batch:
    tokens = jax.random.randint(jax.random.key(1), (8, 17), 0, 256)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def computed(remat: Any) -> float:
    task = task_of(remat)
    return flops(jax.make_jaxpr(jax.grad(task.loss))(task.abstract_state.params, batch(), jax.random.key(0)))


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
    losses = []
    for each in (remat, False):
        task = task_of(each)
        placement = place(task, load_preset(preset), jax.devices())
        program, state = compile_program(task, placement), compile_initial_state(task, placement)()
        values = []
        for _ in range(3):
            state, value = program.step(state, jax.device_put(batch(), placement.batch_shardings))
            values.append(float(value))
        losses.append(values)
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_planning_says_which_policies_it_does_not_estimate() -> None:
    reasons = {name: estimate_row(task_of(name), load_preset("fsdp"), 8, None).no_estimate for name in (True, *KEPT)}
    assert [name for name, reason in reasons.items() if not reason] == [True, "full"]
    assert reasons["minimal"] == "no formula for what remat minimal keeps and recomputes on CPU"
