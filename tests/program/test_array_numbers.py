"""The numbers of all arrays against NumPy in float64 on gathered arrays, under every kind of preset."""

import math
from typing import Any

import jax
import numpy as np
import pytest
from shardtui.engine.models.array import gradient_name, name_of
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.array_numbers import Numbers, compile_numbers, shard_ranges, update_name
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.spec.model_config import Rope
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.number_events import ArrayNumbers

from ..conftest import tiny_config, tiny_model
from ..programs import KINDS

MOE = {"experts": 8, "experts_per_token": 2, "capacity_factor": 1.25}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"rope": Rope(), "activation": "swiglu", "norm": "rms", "biases": "none", "tied": False},
    "local": {"rope": Rope(), "window": 8, "global_every": 2, "layers": 5},
    "moe": MOE,
    "dropless": MOE | {"capacity_factor": 0.0},
}


def measured(task: Task, preset: str, state: TrainState, batch: Batch) -> tuple[Numbers, list[ArrayNumbers], Any]:
    placement = place(task, load_preset(preset), jax.devices())
    numbers = compile_numbers(task, placement)
    placed = jax.device_put((state, batch), (placement.state_shardings, placement.batch_shardings))
    return numbers, *numbers.measure(*placed)


def tokens(task: Task) -> Batch:
    shape = task.config.training.batch_size, task.config.training.seq_len + 1
    found = np.random.default_rng(0).integers(0, 256, shape, np.int32)
    return Batch(found[:, :-1], found[:, 1:])


def expected(array: np.ndarray, is_stacked: bool) -> dict[str, Any]:
    rows = array.astype(np.float64).reshape(len(array) if is_stacked else 1, -1)
    return {
        "rms": np.sqrt(np.mean(np.square(rows), axis=1)),
        "max": np.max(np.abs(rows), axis=1),
        "mean": np.mean(rows, axis=1),
        "zeros": np.mean(rows == 0, axis=1),
        "nonfinite": np.zeros(len(rows)),
    }


def check(found: ArrayNumbers, values: dict[str, Any]) -> None:
    for name, value in values.items():
        scale = 1e-5 * values["rms"].max() if name == "mean" else 1e-7 * (name == "zeros")
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-5, atol=scale, err_msg=f"{found.name} {name}")


@pytest.mark.core
@pytest.mark.parametrize(
    ("family", "preset"),
    [
        *(("gpt2", preset) for preset in KINDS),
        ("llama", "hsdp"),
        ("local", "dp-tp2"),
        ("moe", "ep2-tp2"),
        ("dropless", "dp-ep4"),
    ],
)
def test_numbers_are_those_of_gathered_arrays(family: str, preset: str) -> None:
    task = Task(tiny_config(model=tiny_model(**FAMILIES[family])), "cpu")
    batch, state = tokens(task), jax.device_get(jax.jit(task.initial_state)())
    plain = jax.jit(task.gradients_and_updates)(state, batch)
    _, arrays, experts = measured(task, preset, state, batch)
    found = {array.name: array for array in arrays}
    trees = [(state.params, str), (plain.gradients, gradient_name), (plain.updates, update_name)]
    described = {array.names[0]: array for array in task.arrays}
    checked = 0
    for tree, name in trees:
        for path, leaf in jax.tree.leaves_with_path(jax.device_get(tree)):
            array = found[name(name_of(path))]
            assert array.is_stacked == described[name_of(path)].is_stacked
            values = expected(leaf, array.is_stacked)
            if name is gradient_name:  # the order of a sum decides whether it is exactly 0
                values.pop("zeros")
            if name is update_name:  # adam divides by the size of a gradient, so rounding near 0 decides its sign
                values = {"nonfinite": values["nonfinite"]}
            check(array, values)
            checked += 1
    assert checked == 3 * len(jax.tree.leaves(state.params))
    logits = jax.device_get(jax.jit(task.logits)(state.params, batch.inputs))
    check(found["logits"], expected(logits, False))
    assert len(found["blocks.attention.residual"].rms) == task.config.model.layers  # type: ignore[union-attr]
    assert (experts is not None) == ("moe" in family or family == "dropless")
    if experts:
        assert np.mean(experts.load) == pytest.approx(1)
        assert np.shape(experts.load) == (2, 8)
        assert (experts.dropped is None) == (family == "dropless")
        assert experts.device_parts == (2 if preset == "ep2-tp2" else 4)


def test_parameters_equal_numpy_and_a_shard_that_stands_out_is_named_with_its_device() -> None:
    task = Task(tiny_config(), "cpu")
    placement = place(task, load_preset("fsdp-tp2"), jax.devices())
    numbers = compile_numbers(task, placement)
    state = compile_initial_state(task, placement)()
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
        array = arrays[name_of(path)]
        check(array, expected(leaf, array.is_stacked))
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
