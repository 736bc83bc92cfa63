"""Compares predicted with measured memory: `python tests/long/memory.py` (about three minutes).

On simulated devices all shards live in this machine's memory, so the prediction for one device times their number is
set against the growth of the process: its peak while it trains, less what it held before the state was made. Each
preset has a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}

SETTINGS = ("layers=8", "embed=512", "mlp=2048", "seq_len=128", "batch_size=16")
PRESETS = ("dp", "dp-tp2", "tp", "fsdp", "fsdp-tp2", "hsdp", "pitfall-replicated-moments")
STEPS = 3


def main() -> None:
    import jax
    from shardtui.engine.base import figures

    print(f"**Python {sys.version.split()[0]}, jax {jax.__version__}**, nano with {', '.join(SETTINGS)}\n")
    print("| preset | arguments, predicted | living arrays | peak of 8, predicted | growth of the process | |")
    print("|---|---|---|---|---|---|")
    for preset in PRESETS:
        answer = subprocess.run([sys.executable, __file__, preset], capture_output=True, text=True, check=True)
        arguments, live, peak, grown = map(int, answer.stdout.split())
        sizes = " | ".join(figures.size(count) for count in (arguments, live, peak, grown))
        print(f"| {preset} | {sizes} | × {grown / peak:.2f} |")


def measure_one(preset: str) -> None:
    """Prints predicted arguments and living bytes of one device, predicted peak and growth of all."""
    import jax
    import numpy as np
    from shardtui.engine.models.task import Batch, Task
    from shardtui.engine.program.memory import measure
    from shardtui.engine.program.program import compile_initial_state, compile_program, place
    from shardtui.engine.spec.config import RunConfig
    from shardtui.engine.spec.model_choice import load_model
    from shardtui.engine.spec.preset_reader import load_preset

    model = load_model("nano", SETTINGS)
    config = RunConfig(run="x", model_name="nano", model=model.model, training=model.training, preset=preset)
    task = Task(config, "cpu")
    program = compile_program(task, place(task, load_preset(preset), jax.devices()))
    assert program.description.memory
    tokens = np.zeros((model.training.batch_size, model.training.seq_len), np.int32)
    batch = Batch(*(jax.device_put(tokens, sharding) for sharding in program.placement.batch_shardings))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the compiler's
    state = compile_initial_state(task, program.placement)()
    for _ in range(STEPS):
        state, loss = program.step(state, batch)
    loss.block_until_ready()
    live = measure(jax.devices()).bytes_in_use
    print(program.description.memory.arguments, live, 8 * program.description.memory.peak, status("VmHWM") - before)


def status(key: str) -> int:
    """Bytes that Linux tells of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    measure_one(sys.argv[1]) if len(sys.argv) > 1 else main()
