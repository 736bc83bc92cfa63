"""The cycles that the TPU compiler estimates for the operations of a program."""

import re

from .hlo import Instruction

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def cycles_of(each: Instruction) -> int:
    """Returns the estimate of one execution; 0 if there is none."""
    found = CYCLES.search(each.rest)
    return int(found[1]) if found else 0
