"""Compares predicted with measured memory: `python tests/long/memory.py [--record]` (about three minutes).

On simulated devices all shards live in this machine's memory, so the prediction for one device times their number is
set against the growth of the process: its peak while it trains, less what it held before the state was made. Each
preset has a process of its own.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import memory, versions
from tests.table import Table, arguments

SETTINGS = ("layers=8", "embed=512", "mlp=2048", "seq_len=128", "batch_size=16")
PRESETS = ("dp", "dp-tp2", "tp", "fsdp", "fsdp-tp2", "hsdp", "pitfall-replicated-moments")
STEPS = 3
COLUMNS = {
    "preset": "",
    "arguments, predicted": "bytes",
    "living arrays": "bytes",
    "peak of 8, predicted": "bytes",
    "growth of the process": "bytes",
    "to the predicted": "× {:.2f}",
}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}, nano with {', '.join(SETTINGS)}\n")
    with Table("long/memory", COLUMNS, options.record) as table:
        for preset in PRESETS:
            answer = subprocess.run([sys.executable, __file__, preset], capture_output=True, text=True, check=True)
            arguments_bytes, live, peak, grown = map(int, answer.stdout.split())
            table.add(preset, arguments_bytes, live, peak, grown, grown / peak)


def measure_one(preset: str) -> None:
    """Prints predicted arguments and living bytes of one device, predicted peak and growth of all."""
    import jax
    import numpy as np
    from shardtui.engine.models.task import Batch, Task
    from shardtui.engine.program.memory import measure
    from shardtui.engine.program.placement import place
    from shardtui.engine.program.program import compile_initial_state, compile_program
    from shardtui.engine.spec.preset_reader import load_preset

    from tests.bench.plain import config

    task = Task(config(*SETTINGS, preset=preset), "cpu")
    program = compile_program(task, place(task, load_preset(preset), jax.devices()))
    assert program.description.memory
    tokens = np.zeros((task.config.training.batch_size, task.config.training.seq_len), np.int32)
    batch = Batch(*(jax.device_put(tokens, sharding) for sharding in program.placement.batch_shardings))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the compiler's
    state = compile_initial_state(task, program.placement)()
    for _ in range(STEPS):
        state, scalars = program.step(state, batch)
    jax.block_until_ready(scalars)
    live = measure(jax.devices()).bytes_in_use
    print(program.description.memory.arguments, live, 8 * program.description.memory.peak, memory("VmHWM") - before)


if __name__ == "__main__":
    measure_one(sys.argv[1]) if sys.argv[1:] and sys.argv[1] in PRESETS else main()
