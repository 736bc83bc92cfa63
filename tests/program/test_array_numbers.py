"""What is in the arrays of a step, against NumPy, and where its first non-finite value comes from."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from shardtui.engine.models.array import name_of
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.array_numbers import compile_numbers, shard_ranges
from shardtui.engine.program.first_nonfinite import explain
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.spec.config import TrainingConfig
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.number_events import ArrayNumbers, NonfiniteOrigin

from .. import nonfinite_model
from ..conftest import tiny_config
from ..oracle.arrays import Whole, error, tokens

CORE = {("gpt2", "dp-tp2-pp2"), ("llama", "hsdp"), ("moe", "ep2-tp2")}
OTHERS = {("local", "dp-tp2"), ("dropless", "dp-ep4"), ("gpt2", "dp-sp2"), ("gpt2", "fsdp-tp2-explicit")}


@pytest.mark.parametrize(
    ("family", "preset"),
    [
        *(pytest.param(*case, marks=pytest.mark.core) for case in sorted(CORE)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(OTHERS)),
    ],
)
def test_numbers_are_those_of_gathered_arrays(family: str, preset: str) -> None:
    whole = Whole(family)
    arrays, experts = whole.measured(preset)
    worst = whole.errors(arrays)
    assert max(worst.values()) < 1e-5, worst
    assert {"parameter", "moment", "gradient", "update", "activation"} == worst.keys()
    residual = next(array for array in arrays if array.name == "blocks.attention.residual")
    assert len(residual.rms) == whole.task.config.model.layers  # type: ignore[union-attr]
    assert (experts is not None) == ("moe" in family or family == "dropless")
    if experts:
        assert np.mean(experts.load) == pytest.approx(1)
        assert np.shape(experts.load) == (2, 8)
        assert (experts.dropped is None) == (family == "dropless")
        assert experts.device_parts == (2 if preset == "ep2-tp2" else 4)


@pytest.mark.core
def test_parameters_equal_numpy_and_a_shard_that_stands_out_is_named_with_its_device() -> None:
    task = Task(tiny_config(), "cpu")
    placement = place(task, load_preset("fsdp-tp2"), jax.devices())
    numbers = compile_numbers(placement)
    state = compile_initial_state(placement)()
    batch = jax.device_put(tokens(task), placement.batch_shardings)
    kernel = state.params["blocks"]["mlp"]["up"]["kernel"]

    def changed(device: int, factor: float) -> TrainState:
        shards = [
            jax.device_put(np.asarray(shard.data) * (factor if shard.device.id == device else 1.0), shard.device)
            for shard in kernel.addressable_shards
        ]
        array = jax.make_array_from_single_device_arrays(kernel.shape, kernel.sharding, shards)
        params = jax.tree.map(lambda leaf: array if leaf is kernel else leaf, state.params)
        return state._replace(params=params)

    def found(state: TrainState) -> dict[str, ArrayNumbers]:
        return {each.name: each for each in numbers.measure(state, batch)[0]}

    arrays = found(state)
    for path, leaf in jax.tree.leaves_with_path(jax.device_get(state.params)):
        assert error(arrays[name_of(path)], leaf) < 1e-5
    whole = arrays["blocks.mlp.up.kernel"]
    assert whole.shards == []
    box = shard_ranges(kernel.shape, kernel.sharding)[5]
    large = found(changed(5, 100.0))["blocks.mlp.up.kernel"]
    of_layers = [(5, [[layer, layer + 1], *box[1:]]) for layer in range(2)]
    assert sorted((shard.device, shard.ranges) for shard in large.shards) == of_layers
    assert large.shards[0].rms == pytest.approx(100 * whole.rms[0], rel=0.2)
    bad = found(changed(5, math.nan))["blocks.mlp.up.kernel"]
    elements = math.prod(stop - start for start, stop in box[1:])
    assert bad.nonfinite == [elements, elements]
    assert [(shard.device, shard.nonfinite) for shard in bad.shards] == [(5, elements)] * 2
    assert bad.rms == pytest.approx(whole.rms, rel=0.2), "of the finite elements"


Scene = tuple[Task, Placement, TrainState]


@pytest.fixture(scope="module")
def users() -> Scene:
    model, training = user_model(f"{nonfinite_model.__file__}:build")[0], TrainingConfig(batch_size=16, seq_len=16)
    return scene(Task(tiny_config(model=model, training=training, data=None), "cpu"), "fsdp-tp2")


def scene(task: Task, preset: str) -> Scene:
    placement = place(task, load_preset(preset), jax.devices())
    return task, placement, compile_initial_state(placement)()


def explained(users: Scene, **changed: tuple[int, float]) -> NonfiniteOrigin | None:
    _, placement, state = users
    batch = nonfinite_model.batch(0)
    for key, (row, value) in changed.items():
        batch[key] = batch[key].copy()
        batch[key][row] = value
    return explain(placement, state, jax.device_put(batch, placement.batch_shardings))


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


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fsdp-tp2-explicit", "dp-tp4", "dp-tp2-pp2"])
def test_the_layer_is_named(preset: str) -> None:
    task, placement, state = scene(Task(tiny_config(), "cpu"), preset)
    batch = jax.device_put(tokens(task), placement.batch_shardings)
    kernel = state.params["blocks"]["mlp"]["up"]["kernel"]
    values = np.array(kernel)
    values[1] = 3e38
    large = jax.device_put(values, kernel.sharding)
    params = jax.tree.map(lambda leaf: large if leaf is kernel else leaf, state.params)
    found = explain(placement, state._replace(params=params), batch)
    assert found and (found.name, found.operation) == ("blocks.mlp.up", "dot_general")
    assert found.layer == (None if preset == "dp-tp2-pp2" else 1)
