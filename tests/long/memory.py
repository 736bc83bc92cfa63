"""Compares predicted with measured memory: `python tests/long/memory.py [--record]` (about three minutes).

On simulated devices all shards live in this machine's memory, so the prediction for one device times their number is
set against the growth of the process: its peak while it trains, less what it held before the state was made. Each
preset has a process of its own.
"""

import sys
from pathlib import Path

import cpu_devices
import jax
import numpy as np
from shardtui.engine.models.task import Batch
from shardtui.engine.program.memory import measure
from shardtui.engine.program.program import compile_initial_state, compile_program

from tests.bench.plain import config, placed
from tests.suite import memory, printed

SETTINGS = ("layers=8", "embed=512", "mlp=2048", "seq_len=128", "batch_size=16")
PRESETS = ("dp", "dp-tp2", "tp", "fsdp", "fsdp-tp2", "hsdp", "pitfall-replicated-moments")
STEPS = 3
SIZES = ("arguments, predicted", "living arrays", "peak of 8, predicted", "growth of the process")
COLUMNS = {"preset": "", **dict.fromkeys(SIZES, "bytes"), "to the predicted": "× {:.2f}"}


def main() -> None:
    with cpu_devices.table("long/memory", COLUMNS) as table:
        for preset in PRESETS:
            *sizes, peak, grown = map(int, printed(__file__, preset).split())
            table.add(preset, *sizes, peak, grown, grown / peak)


def measure_one(preset: str) -> None:
    """Prints predicted arguments and living bytes of one device, predicted peak and growth of all."""
    task, placement = placed(config(*SETTINGS, preset=preset))
    program = compile_program(placement)
    assert program.description.memory
    tokens = np.zeros((task.config.training.batch_size, task.config.training.seq_len), np.int32)
    batch = Batch(*(jax.device_put(tokens, sharding) for sharding in placement.batch_shardings))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the compiler's
    state = compile_initial_state(placement)()
    for _ in range(STEPS):
        state, scalars = program.step(state, batch)
    jax.block_until_ready(scalars)
    live = measure(jax.devices()).bytes_in_use
    print(program.description.memory.arguments, live, 8 * program.description.memory.peak, memory("VmHWM") - before)


if __name__ == "__main__":
    measure_one(sys.argv[1]) if sys.argv[1:] and sys.argv[1] in PRESETS else main()
