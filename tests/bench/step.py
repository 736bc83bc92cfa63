"""This engine's step compared with the training loop of Flax's guide, with the same model, optimizer and data.

The guide's loop keeps the old state until the new one is there; ours writes the new one into the memory of the old.
Both are measured in one process, again and again in new ones: where memory lies differs from
process to process, and makes a loop up to a tenth faster for as long as the process lives.
`python -m tests.bench.step PRESET DEVICES` measures them once.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import jax
import jax.numpy as jnp
from flax import nnx
from shardtui.engine.models.decoder import Decoder, loss
from shardtui.engine.models.optimizer import optimizer
from shardtui.engine.models.task import Batch
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.program.memory import keep_freed_blocks

from ..suite import printed
from .figure import Figure, at_least
from .plain import Plain, config

CASES = (("dp", 1), ("dp", 8), ("fsdp", 8), ("tp", 8))
"""Preset and number of devices."""
REPEATS = 5
STEPS = 8
ROUNDS = 3
"""Times that both loops take turns in a process."""
Step = Callable[[Batch], jax.Array]


def run() -> Iterator[Figure]:
    for preset, devices in CASES:
        yield from _figures(preset, devices)


def _figures(preset: str, devices: int) -> Iterator[Figure]:
    answers = [json.loads(printed("-m", "tests.bench.step", preset, str(devices))) for _ in range(REPEATS)]
    where = f"{preset} on {devices} device{'s' * (devices > 1)}"
    for kind, name in enumerate(("steps/s, ours ÷ Flax guide's loop", "processor time, Flax guide's loop ÷ ours")):
        seconds = [(own[kind], guide[kind]) for own, guide in answers]
        guides_own = f"guide's: {1e3 * median(guide for _, guide in seconds):.1f} ms a step"
        yield at_least(1.0, f"{name}, {where}", [guide / own for own, guide in seconds], "×", guides_own)


def main() -> None:
    """Prints the seconds of our step and the guide's: medians of `ROUNDS`, as JSON."""
    keep_freed_blocks()
    plain = Plain(config(preset=sys.argv[1], devices=int(sys.argv[2])))
    batch = plain.batch(0)
    loops = _ours(plain), _guides(plain)
    for loop in loops:
        _seconds(loop, batch)  # compiles
    rounds = [[_seconds(loop, batch) for loop in loops] for _ in range(ROUNDS)]
    print(json.dumps([[median(values) for values in zip(*times, strict=True)] for times in zip(*rounds, strict=True)]))


def _ours(plain: Plain) -> Step:
    state = plain.state()

    def step(batch: Batch) -> jax.Array:
        nonlocal state
        state, scalars = plain.step(state, batch)
        return scalars["loss"]

    return step


def _guides(plain: Plain) -> Step:
    """Returns the guide's step: `nnx.jit` over a model and an `nnx.Optimizer` that are created sharded."""
    task, mesh, preset = plain.task, plain.placement.mesh, plain.placement.preset
    names = {name for array in task.arrays for name in array.logical_axes if name}
    rules = tuple((name, preset.axes(name) or None) for name in names)

    @nnx.jit
    def create() -> tuple[Decoder, nnx.Optimizer]:
        model = Decoder(task.config.model, jnp.dtype(task.model.dtype), nnx.Rngs(task.config.seed))
        return model, nnx.Optimizer(model, optimizer(task.config.training, {}), wrt=nnx.Param)

    @nnx.jit
    def train_step(model: Decoder, adam: nnx.Optimizer, batch: Batch, key: jax.Array) -> jax.Array:
        value, gradients = nnx.value_and_grad(lambda model: loss(model(batch.inputs, key), batch.targets))(model)
        adam.update(model, gradients)
        return value

    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        model, adam = create()
    keys = iter(jax.random.split(jax.random.key(0), 10_000))

    def step(batch: Batch) -> jax.Array:
        with jax.set_mesh(mesh), nnx.logical_axis_rules(rules), activation_rules(mesh, preset.rules, None):
            return train_step(model, adam, batch, next(keys))

    return step


def _seconds(step: Step, batch: Batch) -> tuple[float, float]:
    """Returns the seconds of a step by the clock and of the processor, in all threads, which other load on the machine
    hardly changes. Each loss is read after the next step is dispatched."""
    before = step(batch)
    before.block_until_ready()
    began = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        value = step(batch)
        float(before)
        before = value
    before.block_until_ready()
    clock, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    return clock / STEPS, processor / STEPS


if __name__ == "__main__":
    main()
