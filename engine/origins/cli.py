"""The engine's side of `shardtui explain` and `shardtui why`. The former uses simulated devices only."""

import msgspec

from ..wire.stdout import print_answer
from .compiled import compiled
from .explain import explain
from .request import Program, Step
from .step import explain_step
from .user_program import lower


def explain_program(program: Program) -> None:
    """Prints an `Explanation` of a program of the user's as JSON. Raises Invalid."""
    lowered = lower(program)
    found = explain(lowered.compiler_ir("stablehlo"), program.function.name)
    if program.compiles:
        found = msgspec.structs.replace(found, compiled=compiled(lowered, found))
    print_answer(found)


def why(step: Step) -> None:
    """Prints an `Explanation` of a preset's step as a line of JSON; with rules to try, a second one with those.

    Raises Invalid.
    """
    for found in explain_step(step):
        print_answer(found)
