"""The norms of a step against NumPy, under every kind of preset."""

import jax
import numpy as np
import pytest
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.program.program import compile_initial_state

from ..programs import KINDS, Programs

SHORT = ("dp", "dp-tp2-pp2", "fsdp-tp2", "fsdp-tp2-explicit")


def norm(tree: object) -> float:
    leaves = jax.tree.leaves(jax.device_get(tree))
    return float(np.sqrt(sum(np.sum(np.square(leaf.astype(np.float64))) for leaf in leaves)))


@pytest.fixture(scope="module")
def batch(task: Task) -> tuple[np.ndarray, np.ndarray]:
    training = task.config.training
    tokens = np.random.default_rng(0).integers(0, 256, (training.batch_size, training.seq_len + 1), np.int32)
    return tokens[:, :-1], tokens[:, 1:]


@pytest.fixture(scope="module")
def gradient_norm(task: Task, batch: tuple[np.ndarray, np.ndarray]) -> float:
    params = jax.jit(task.initial_state)().params
    return norm(jax.jit(jax.grad(task.loss))(params, Batch(*batch), None))


@pytest.mark.parametrize(
    "preset", [each if each in SHORT else pytest.param(each, marks=pytest.mark.core) for each in KINDS]
)
def test_norms_are_those_of_all_elements(
    task: Task, programs: Programs, batch: tuple[np.ndarray, np.ndarray], gradient_norm: float, preset: str
) -> None:
    program = programs[preset]
    state = compile_initial_state(task, program.placement)()
    before = jax.device_get(state.params)
    state, scalars = program.step(state, Batch(*map(jax.device_put, batch, program.placement.batch_shardings)))
    moved = jax.tree.map(np.subtract, jax.device_get(state.params), before)
    found = {name: float(value) for name, value in scalars.items()}
    assert found["grad_norm"] == pytest.approx(gradient_norm, rel=1e-5)
    assert found["param_norm"] == pytest.approx(norm(state.params), rel=1e-5)
    assert found["update_norm"] == pytest.approx(norm(moved), rel=1e-3), "parameters are rounded"
    norms = [info for info in program.description.collectives or () if [3] in info.shapes]
    assert [info.kind for info in norms] == ["all-reduce"], "all norms are summed at once"
