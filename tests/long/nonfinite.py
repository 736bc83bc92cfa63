"""Is the first non-finite value identified? `python tests/long/nonfinite.py [--record]` (a quarter of an
hour): fifty faults, put into the state or the batch before a step, under six presets."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import cpu_devices

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

import jax
import numpy as np
from shardtui.engine.models.array import name_of
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.array_numbers import shard_ranges
from shardtui.engine.program.first_nonfinite import explain
from shardtui.engine.program.placement import Placement
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.wire.number_events import NonfiniteOrigin

from tests import nonfinite_model
from tests.bench.plain import config, placed

PRESETS = ("dp", "fsdp", "fsdp-tp2", "dp-tp4", "hsdp", "fsdp-tp2-explicit")
LAYERS = 3
SETTINGS = ("embed=32", "heads=8", "mlp=64", "context=16", "dropout=0", "seq_len=16", "batch_size=16", "dtype=bfloat16")
OVERFLOWS = {
    "blocks.attention.qkv.kernel": "blocks.attention.qkv",
    "blocks.attention.out.kernel": "blocks.attention.branch",
    "blocks.mlp.up.kernel": "blocks.mlp.up",
    "blocks.mlp.down.kernel": "blocks.mlp.branch",
}
"""By kernel, the value that overflows if its elements are as large as bfloat16 has them."""
LOSS = Path(nonfinite_model.__file__)
COLUMNS = {"fault": "", "tried": "{:,}", "identified": "{:,}"}


class Fault(NamedTuple):
    state: TrainState
    batch: Any
    expected: dict[str, Any]
    """Fields of the origin."""


class Scene(NamedTuple):
    """A task under a preset, with a state and a batch in which all is well."""

    task: Task
    placement: Placement
    state: TrainState
    batch: Any

    def explained(self, fault: Fault) -> NonfiniteOrigin | None:
        batch = jax.device_put(fault.batch, self.placement.batch_shardings)
        return explain(self.placement, fault.state, batch)

    def with_parameter(self, name: str, change: Callable[[jax.Array], jax.Array]) -> TrainState:
        params = jax.tree.map_with_path(
            lambda path, leaf: change(leaf) if name_of(path) == name else leaf, self.state.params
        )
        return self.state._replace(params=params)

    def holders(self, row: int) -> list[int]:
        """Returns the devices that the row of a batch is on."""
        sharding = jax.tree.leaves(self.placement.batch_shardings)[0]
        size = self.task.config.training.batch_size
        ranges = shard_ranges((size,), jax.sharding.NamedSharding(sharding.mesh, jax.P(sharding.spec[0])))
        return [device for device, ((start, stop),) in ranges.items() if start <= row < stop]


def main() -> None:
    kinds = {
        "overflow in bfloat16": (built_in, overflows),
        "shard of one device corrupted": (built_in, corrupted_shards),
        "division by zero in a user's loss": (user, partial(of_input, "divisor", 0.0, "div", "/ batch")),
        "logarithm of zero": (user, partial(of_input, "probability", 0.0, "log", "jnp.log")),
        "NaN in the data's weights": (user, partial(of_input, "weight", np.nan, "", "")),
    }
    with TemporaryDirectory() as cache, cpu_devices.table("long/nonfinite", COLUMNS) as table:
        jax.config.update("jax_compilation_cache_dir", cache)  # faults under one preset share a program
        for kind, (scene, faults) in kinds.items():
            scenes = [scene(preset) for preset in PRESETS]
            found = [is_right(kind, *each) for each in zip(cycle(scenes), faults(cycle(scenes)), strict=False)]
            table.add(kind, len(found), sum(found))


def is_right(kind: str, scene: Scene, fault: Fault) -> bool:
    origin = scene.explained(fault)
    wrong = [name for name, value in fault.expected.items() if origin is None or getattr(origin, name) != value]
    if wrong:
        print(f"{kind}, {scene.placement.preset.name}: {wrong} of {fault.expected}: {origin}", file=sys.stderr)
    return not wrong


def built_in(preset: str) -> Scene:
    tokens = np.random.default_rng(0).integers(0, 256, (16, 17), np.int32)
    return _scene(config(*SETTINGS, f"layers={LAYERS}", preset=preset), Batch(tokens[:, :-1], tokens[:, 1:]))


def user(preset: str) -> Scene:
    model, _ = user_model(f"{LOSS}:build")
    training = TrainingConfig(batch_size=16, seq_len=16)
    own = RunConfig(run="r", model_name="user", model=model, training=training, preset=preset)
    return _scene(own, nonfinite_model.batch(0))


def _scene(trained: RunConfig, batch: Any) -> Scene:
    task, placement = placed(trained)
    return Scene(task, placement, compile_initial_state(placement)(), batch)


def overflows(scenes: Iterator[Scene]) -> Iterator[Fault]:
    for number, scene in zip(range(10), scenes, strict=False):
        kernel, value = list(OVERFLOWS.items())[number % len(OVERFLOWS)]
        layer = number % LAYERS
        state = scene.with_parameter(kernel, partial(enlarged, layer=layer))
        expected = {"name": value, "layer": layer, "operation": "dot_general", "is_backward": False, "what": "loss"}
        yield Fault(state, scene.batch, expected)


def enlarged(leaf: jax.Array, layer: int) -> jax.Array:
    values = np.array(leaf)
    values[layer] = np.copysign(3e38, values[layer])  # one sign for all would give 0, where their inputs have mean 0
    return jax.device_put(values, leaf.sharding)


def corrupted_shards(scenes: Iterator[Scene]) -> Iterator[Fault]:
    for number, scene in zip(range(10), scenes, strict=False):
        name, device = [*OVERFLOWS, "token.embedding"][number % 5], number % 8

        def corrupt(leaf: jax.Array, device: int = device) -> jax.Array:
            shards = {shard.device: shard.data for shard in leaf.addressable_shards}
            hit = jax.devices()[device]
            shards[hit] = jax.device_put(np.full_like(shards[hit], np.nan), hit)
            return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [*shards.values()])

        expected = {"name": name, "devices": [device], "operation": ""}
        yield Fault(scene.with_parameter(name, corrupt), scene.batch, expected)


def of_input(key: str, value: float, operation: str, line: str, scenes: Iterator[Scene]) -> Iterator[Fault]:
    source = [f"{LOSS}:{n}" for n, text in enumerate(LOSS.read_text().splitlines(), 1) if line and line in text]
    for number, scene in zip(range(10), scenes, strict=False):
        row = (7 * number + 3) % 16
        changed = scene.batch[key].copy()
        changed[row] = value
        expected = {"operation": operation, "indices": [[row]], "devices": scene.holders(row)}
        expected |= {"source": source[-1]} if line else {"name": f"batch.{key}"}
        yield Fault(scene.state, scene.batch | {key: changed}, expected)


if __name__ == "__main__":
    main()
