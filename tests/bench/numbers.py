"""The cost of measuring every array: a measurement ÷ a step, on nano and nano-moe, and its share of a run's time."""

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.array_numbers import compile_numbers
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state, compile_program
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.inputs import DeviceBatches, inputs_of
from shardtui.engine.training.numbers import EVERY, MAX_COST

from .figure import Figure, at_most, timed
from .plain import config

CASES = {"nano": "fsdp-tp2", "nano-moe": "ep2-tp2"}
REPEATS = 7
STEPS = 5
"""Between two measurements, to time them."""


def run() -> list[Figure]:
    return [figure for model, preset in CASES.items() for figure in _costs(model, preset)]


def _costs(model: str, preset: str) -> list[Figure]:
    task = Task(config(name=model), "cpu")
    program = compile_program(task, place(task, load_preset(preset), jax.devices()))
    numbers = compile_numbers(task, program.placement)
    batch = DeviceBatches(inputs_of(task.config, task).batches, 1).batch(0, program)
    state = compile_initial_state(task, program.placement)()

    def ratio() -> float:
        nonlocal state

        def train() -> None:
            nonlocal state
            for _ in range(STEPS):
                state, scalars = program.step(state, batch)
            jax.block_until_ready(scalars)

        train()
        return timed(lambda: numbers.measure(state, batch)) / (timed(train) / STEPS)

    found = [ratio() for _ in range(REPEATS)]
    every = [max(EVERY, each / MAX_COST) for each in found]
    name = f"{model}, {preset}: a measurement of all arrays"
    shares = [each / (each + steps) for each, steps in zip(found, every, strict=True)]
    return [
        at_most(3.0, f"{name} ÷ a step", found, "×", "compiled without optimizing on CPU"),
        at_most(MAX_COST, f"{name}, share of the time", shares, "", "after as many steps as it chooses"),
    ]
