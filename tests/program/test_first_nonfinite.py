"""Where a step's first non-finite value comes from; tests/long/nonfinite.py tries fifty faults."""

from pathlib import Path

import jax
import numpy as np
import pytest
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.first_nonfinite import explain
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.spec.config import TrainingConfig
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.number_events import NonfiniteOrigin

from .. import nonfinite_model
from ..conftest import tiny_config, tiny_model
from ..oracle.arrays import tokens

Scene = tuple[Task, Placement, TrainState]


@pytest.fixture(scope="module")
def users() -> Scene:
    model, training = user_model(f"{nonfinite_model.__file__}:build")[0], TrainingConfig(batch_size=16, seq_len=16)
    return scene(Task(tiny_config(model=model, training=training, data=None), "cpu"), "fsdp-tp2")


def scene(task: Task, preset: str) -> Scene:
    placement = place(task, load_preset(preset), jax.devices())
    return task, placement, compile_initial_state(task, placement)()


def explained(users: Scene, **changed: tuple[int, float]) -> NonfiniteOrigin | None:
    task, placement, state = users
    batch = nonfinite_model.batch(0)
    for key, (row, value) in changed.items():
        batch[key] = batch[key].copy()
        batch[key][row] = value
    return explain(task, placement, state, jax.device_put(batch, placement.batch_shardings))


def test_the_operation_is_named_with_its_line_row_and_device(users: Scene) -> None:
    assert explained(users) is None, "a finite step"
    found = explained(users, probability=(5, 0.0))
    assert found
    before_it, _, _ = Path(nonfinite_model.__file__).read_text().partition("jnp.log")
    source = before_it.count("\n") + 1
    assert (found.operation, found.source) == ("log", f"{nonfinite_model.__file__}:{source}")
    assert (found.what, found.is_nan, found.is_backward, found.largest_input) == ("loss", False, False, 1.0)
    assert (found.elements, found.indices, found.devices) == (1, [[5]], [2, 3]), "fsdp 4 × model 2"
    place = f"`log` (nonfinite_model.py:{source}): 1 of 16 elements infinite (batch 5) on device 2, 3"
    assert found.line == f"{place}; largest finite input 1"


@pytest.mark.core
def test_a_value_of_the_batch_is_named(users: Scene) -> None:
    found = explained(users, weight=(11, np.nan), probability=(5, 0.0))
    assert found and (found.name, found.kind, found.indices) == ("batch.weight", "batch", [[11]]), "a NaN, not the inf"


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param("fsdp-tp2-explicit", marks=pytest.mark.core),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dp-tp4", "dp-tp2-pp2")),
    ],
)
def test_the_layer_is_named(preset: str) -> None:
    task, placement, state = scene(Task(tiny_config(model=tiny_model(layers=4)), "cpu"), preset)
    batch = jax.device_put(tokens(task), placement.batch_shardings)
    kernel = state.params["blocks"]["mlp"]["up"]["kernel"]
    values = np.array(kernel)
    values[3] = 3e38
    large = jax.device_put(values, kernel.sharding)
    params = jax.tree.map(lambda leaf: large if leaf is kernel else leaf, state.params)
    found = explain(task, placement, state._replace(params=params), batch)
    assert found and (found.name, found.operation) == ("blocks.mlp.up", "dot_general")
    assert found.layer == (None if preset == "dp-tp2-pp2" else 3)
