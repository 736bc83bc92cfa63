"""The breakdown of a step: its sum against the clock, what tracing costs a step, and how long reading takes."""

import json
import tempfile
from pathlib import Path
from statistics import median

import jax
from shardtui.engine.profiling.breakdown import read_breakdown
from shardtui.engine.program.memory import keep_freed_blocks

from ..suite import printed
from .figure import Figure, at_least, at_most
from .plain import Plain, config

REPEATS = 5
STEPS = 5
PRESET = "fsdp-tp2"
READING = """
import json, sys, time
from pathlib import Path
from shardtui.engine.profiling.breakdown import read_breakdown
from tests.suite import memory

began = time.perf_counter()
read_breakdown(Path(sys.argv[1]), json.loads(sys.argv[2]))
print(time.perf_counter() - began, memory("VmHWM"))
"""
"""Reads a trace as `shardtui profile` does, without jax; prints the seconds and the peak of memory in bytes."""


def run() -> list[Figure]:
    keep_freed_blocks()
    plain = Plain(config(preset=PRESET))
    plain.seconds(STEPS)
    sums, costs, reads, used = [], [], [], []
    for _ in range(REPEATS):
        untraced = plain.seconds(STEPS)
        with tempfile.TemporaryDirectory() as folder:
            traced = _traced_seconds(plain, folder)
            (path,) = Path(folder).rglob("*.xplane.pb")
            mesh = dict(plain.placement.mesh.shape)
            breakdown = read_breakdown(path, mesh)
            seconds, size = map(float, printed("-c", READING, str(path), json.dumps(mesh)).split())
        reads.append(seconds)
        used.append(size / 1e6)
        sums.append(sum(part.seconds for part in breakdown.parts) / traced)
        costs.append(traced / untraced)
    step = f"{PRESET}: {1e3 * median(sums) * traced:.0f} ms a step"
    read = f"reading a trace of {STEPS} steps of nano"
    return [
        at_least(0.98, "sum of a step's parts ÷ the clock", sums, "×", step),
        at_most(1.01, "a traced step ÷ an untraced one", costs, "×", step),
        at_most(2.0, read, reads, "s", "nothing"),
        at_most(500, f"{read}: most memory of the process", used, "MB", "nothing"),
    ]


def _traced_seconds(plain: Plain, folder: str) -> float:
    """Returns the seconds of a step while the profiler traces it as the engine does."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with jax.profiler.trace(folder, profiler_options=options):
        return plain.seconds(STEPS)
