"""This engine's step compared with the training loop of Flax's guide, with the same model, optimizer and data."""

import time
from collections.abc import Callable
from statistics import median

import jax
import jax.numpy as jnp
from flax import nnx
from shardtui.engine.models.decoder import Gpt, loss
from shardtui.engine.models.task import Batch, optimizer
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.program.memory import keep_freed_blocks

from .figure import Figure, at_least
from .plain import Plain, config

CASES = (("dp", 1), ("dp", 8), ("fsdp", 8), ("tp", 8))
"""Preset and number of devices."""
REPEATS = 7
STEPS = 8
Step = Callable[[Batch], jax.Array]


def run() -> list[Figure]:
    """Measures steps/s of both loops, with the engine's memory settings."""
    keep_freed_blocks()
    return [_figure(preset, devices) for preset, devices in CASES]


def _figure(preset: str, devices: int) -> Figure:
    plain = Plain(config(preset=preset, devices=devices))
    batch = plain.batch(0)
    ours, guides = _ours(plain), _guides(plain)
    pairs = [(_seconds(ours, batch), _seconds(guides, batch)) for _ in range(REPEATS + 1)][
        1:
    ]  # without the first, which compiles
    guide = median(seconds for _, seconds in pairs)
    where = f"{preset} on {devices} device{'s' * (devices > 1)}"
    return at_least(
        1.0,
        f"steps/s, ours ÷ Flax guide's loop, {where}",
        [theirs / own for own, theirs in pairs],
        "×",
        f"guide's: {1e3 * guide:.1f} ms a step",
    )


def _ours(plain: Plain) -> Step:
    state = plain.state()

    def step(batch: Batch) -> jax.Array:
        nonlocal state
        state, value = plain.step(state, batch)
        return value

    return step


def _guides(plain: Plain) -> Step:
    """Returns the guide's step: `nnx.jit` over a model and an `nnx.Optimizer` that are created sharded."""
    task, mesh, preset = plain.task, plain.placement.mesh, plain.placement.preset
    names = {name for array in task.arrays for name in array.logical_axes if name}
    rules = tuple((name, preset.rules.get(name) or None) for name in names)

    @nnx.jit
    def create() -> tuple[Gpt, nnx.Optimizer]:
        model = Gpt(task.config.model, jnp.dtype(task.dtype), nnx.Rngs(task.config.seed))
        return model, nnx.Optimizer(model, optimizer(task.config.training), wrt=nnx.Param)

    @nnx.jit
    def train_step(model: Gpt, adam: nnx.Optimizer, batch: Batch, key: jax.Array) -> jax.Array:
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


def _seconds(step: Step, batch: Batch) -> float:
    """Returns the seconds per step; each loss is read after the next step is dispatched."""
    before = step(batch)
    before.block_until_ready()
    began = time.perf_counter()
    for _ in range(STEPS):
        value = step(batch)
        float(before)
        before = value
    before.block_until_ready()
    return (time.perf_counter() - began) / STEPS
