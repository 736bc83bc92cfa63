"""What does the bubble of a pipeline cost? `python tests/long/pipeline.py [--record]`, a quarter of an hour.

The time of a step of `pp2` for several numbers of micro-batches and of passes through the stages, as the processor time
of all eight simulated devices together: a stage that has nothing to do computes all the same, so the bubble takes
processor time like any other tick, and what else the machine does matters less than to a clock.
"""

import os
import time
from statistics import median

import cpu_devices

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # half the compile time, the same operations

import jax
import msgspec
import numpy as np
from shardtui.engine.models.task import Batch
from shardtui.engine.program.memory import keep_freed_blocks
from shardtui.engine.program.program import compile_initial_state, compile_program
from shardtui.engine.spec.preset_reader import load_preset

from tests.bench.plain import config, placed

DEEP = ("layers=8", "embed=128", "heads=8", "mlp=512", "context=64", "seq_len=64", "batch_size=32")
SCHEDULES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2))
"""Micro-batches and repeats."""
TIMED = 4
COLUMNS = {"micro-batches": "", "repeats": "", "ticks as compiled": "{}", "bubble": "part"}
COLUMNS |= {"processor time of a step": "{:.2f} s", "to that of one": "{:.2f}", "(R M + 1) ÷ 2 R M": "{:.2f}"}


def main() -> None:
    first = None
    with cpu_devices.table("long/bubble", COLUMNS) as table:
        for microbatches, repeats in SCHEDULES:
            ticks, bubble, seconds = step_seconds(microbatches, repeats)
            first = first or seconds
            predicted = (repeats * microbatches + 1) / (2 * repeats * microbatches)
            table.add(microbatches, repeats, ticks, bubble, seconds, seconds / first, predicted)


def step_seconds(microbatches: int, repeats: int) -> tuple[int, float, float]:
    """Ticks in the compiled program, bubble, and the median processor time of a step."""
    keep_freed_blocks()
    preset = msgspec.structs.replace(load_preset("pp2"), microbatches=microbatches, pipeline_repeats=repeats)
    task, placement = placed(config(*DEEP, preset="pp2"), preset)
    program = compile_program(placement)
    tokens = np.zeros((task.config.training.batch_size, task.config.training.seq_len), np.int32)
    batch = Batch(*(jax.device_put(tokens, sharding) for sharding in placement.batch_shardings))
    state, seconds = compile_initial_state(placement)(), list[float]()
    for _ in range(TIMED + 1):
        began = time.process_time()
        state, scalars = program.step(state, batch)
        jax.block_until_ready(scalars)
        seconds.append(time.process_time() - began)
    moves = [info for info in program.description.collectives or () if info.kind == "collective-permute"]
    assert program.description.pipeline
    return max(info.count or 0 for info in moves), program.description.pipeline.bubble, median(seconds[1:])


if __name__ == "__main__":
    main()
