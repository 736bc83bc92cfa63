"""The engine's side of `shardtui explain`, `why`, `inspect --json` and the origin dialog."""

from pathlib import Path

import msgspec

from ..base.invalid import Invalid
from ..program.cli import inspections
from ..spec.config import RunConfig
from ..wire.stdout import print_answer
from .compiled import compiled
from .explain import explain
from .explanation import Explained, KeptStepRequest, ProgramRequest, StepRequest
from .programs import explain_kept, lower
from .step import explain_step, explained


def explain_program(program: ProgramRequest) -> None:
    """Prints an `Explanation` of a program of the user's as JSON. Raises Invalid."""
    lowered = lower(program)
    found = explain(lowered.compiler_ir("stablehlo"), program.function.name)
    if program.compiles:
        found = msgspec.structs.replace(found, compiled=compiled(lowered, found))
    print_answer(found)


def why(step: StepRequest) -> None:
    """Prints an `Explanation` of a preset's step as a line of JSON; with rules to try, another line. Raises Invalid."""
    for found in explain_step(step):
        print_answer(found)


def explain_kept_step(kept: KeptStepRequest) -> None:
    """Prints an `Explanation` of the step of an external loop as JSON. Raises Invalid."""
    print_answer(explain_kept(Path(kept.path)))


def inspect_with_origins(config: RunConfig) -> None:
    """Prints an `Inspection` of the preset of `config`, then `Explained`, as a line of JSON each. Raises Invalid."""
    for task, placement, inspection in inspections(config):
        print_answer(inspection)
        try:
            print_answer(Explained(explanation=explained(task, placement)))
        except Invalid as error:
            print_answer(Explained(problem=error.problems[0]))
