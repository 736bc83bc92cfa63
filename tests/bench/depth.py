"""How the time to lower and compile grows with the number of layers."""

from statistics import median

import jax
from shardtui.engine.program.program import trace_step

from .figure import Figure, at_most, timed
from .plain import config, placed

FEW, MANY = 4, 96
REPEATS = 5


def run() -> list[Figure]:
    pairs = [(_seconds(FEW), _seconds(MANY)) for _ in range(REPEATS)]
    name, few = f"lower and compile {MANY} layers ÷ {FEW} layers", median(seconds for seconds, _ in pairs)
    return [at_most(1.3, name, [many / few for few, many in pairs], "×", f"{FEW} layers: {few:.2f} s")]


def _seconds(layers: int) -> float:
    """Returns the seconds to lower and compile nano with so many layers under fsdp, with empty caches."""
    _, placement = placed(config(f"layers={layers}", preset="fsdp"))
    jax.clear_caches()
    return timed(lambda: trace_step(placement).lower().compile())
