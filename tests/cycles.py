"""The cycles that the TPU compiler estimates for a whole program."""

from shardtui.engine.hlo.execution_counts import runs
from shardtui.engine.hlo.module import Module
from shardtui.engine.hlo.work import CYCLES, cycles_of


def estimated_cycles(module: Module) -> int | None:
    """Returns the estimates of all instructions × how often they run; None if the text has none.

    Fusions and matrix products have an estimate, and few collectives do.
    """
    times = runs(module)
    found = [(each, times[where.name] or 0) for where, each in module.instructions() if CYCLES.search(each.rest)]
    return sum(cycles_of(each) * ran for each, ran in found) if found else None
