"""The cost of the numbers of a step: of its norms, of a measurement of all arrays, and of those that a run makes."""

import json
from statistics import median
from unittest.mock import patch

import jax
from shardtui.engine.models import task as tasks
from shardtui.engine.program.array_numbers import compile_numbers
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.training.inputs import DeviceBatches, inputs_of
from shardtui.engine.training.numbers import MAX_COST

from ..suite import printed
from .figure import Figure, at_most, timed
from .plain import config, placed

CASES = {"nano": "fsdp-tp2", "nano-moe": "ep2-tp2"}
REPEATS = 15
STEPS = 3
"""In a row, to time them."""
SMALL = ("--set=layers=2", "--set=context=64", "--seq-len=64", "--steps=700")
"""Until after the second measurement of a run."""


def run() -> list[Figure]:
    return [figure for model, preset in CASES.items() for figure in _costs(model, preset)]


def _costs(model: str, preset: str) -> list[Figure]:
    task, placement = placed(config(name=model, preset=preset))
    program, numbers = compile_program(placement), compile_numbers(placement)
    with patch.object(tasks, "global_norms", lambda trees, _: dict.fromkeys(trees, 0.0)):
        plain = compile_program(placement)
    batch = DeviceBatches(inputs_of(task).batches, 1).batch(0, program)
    state = compile_initial_state(placement)()

    def seconds(program: Program) -> float:
        """Returns the seconds of a step."""

        def train() -> None:
            nonlocal state
            for _ in range(STEPS):
                state, scalars = program.step(state, batch)
            jax.block_until_ready((state, scalars))

        return timed(train) / STEPS

    seconds(program), seconds(plain)
    found = [(seconds(program), seconds(plain), timed(lambda: numbers.measure(state, batch))) for _ in range(REPEATS)]
    where = f"{model}, {preset}"
    step = f"a step: {1e3 * median(each[0] for each in found):.0f} ms"
    return [
        at_most(1.01, f"{where}: a step ÷ one without norms", [own / bare for own, bare, _ in found], "×", step),
        at_most(6.0, f"{where}: a measurement ÷ a step", [numbers / own for own, _, numbers in found], "×", step),
        at_most(MAX_COST, f"{where}: measurements, share of a run", [_share(model, preset)], "", "two layers"),
    ]


def _share(model: str, preset: str) -> float:
    """Returns the seconds of all measurements ÷ those of all steps of a run."""
    arguments = ["train", f"--model={model}", f"--preset={preset}", *SMALL, "--json"]
    events = [json.loads(line) for line in printed("-m", "shardtui.tui", *arguments).splitlines()]
    measured = sum(event["seconds"] for event in events if event["type"] == "NumbersMeasured")
    assert measured, "at least one"
    return measured / sum(event["step_seconds"] for event in events if event["type"] == "StepDone")
