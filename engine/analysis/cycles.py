"""The cycles that the TPU compiler estimates for the operations of a program."""

import re

from .execution_counts import runs
from .hlo import Instruction, Module

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def estimated_cycles(module: Module) -> int | None:
    """Returns the estimates of all instructions × how often they run; None if the text has none.

    Fusions and matrix products have an estimate, and few collectives do.
    """
    times = runs(module)
    found = [(each, times[where.name] or 0) for where, each in module.instructions() if CYCLES.search(each.rest)]
    return sum(cycles_of(each) * ran for each, ran in found) if found else None


def cycles_of(each: Instruction) -> int:
    """Returns the estimate of one execution; 0 if there is none."""
    found = CYCLES.search(each.rest)
    return int(found[1]) if found else 0
