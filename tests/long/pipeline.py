"""Do pipelines train the same losses, and what does the bubble cost? `python tests/long/pipeline.py [--bubble]
[--record]` makes two tables.

The first has 60 steps under each pipelined preset and with live switches between them and others, beside `dp`, dropout
on. The second has the time of a step of `pp2` for several numbers of micro-batches and of passes through the stages, as
the processor time of all eight simulated devices together: a stage that has nothing to do computes all the same, so the
bubble takes processor time like any other tick, and what else the machine does matters less than to a clock.
`--bubble` makes the second one alone.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # half the compile time, the same operations

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.long.losses import events, losses
from tests.suite import versions
from tests.table import Table, arguments

STEPS = 60
SMALL = ("layers=4", "embed=64", "heads=8", "mlp=256", "context=64", "seq_len=64", "batch_size=16")
EXAMPLE = "docs/examples/pp2-interleaved.toml"
ROUTE = ("--switch=12:pp2", "--switch=24:fsdp-tp2", "--switch=36:dp-tp2-pp2", "--switch=48:dp")
INTO_EXAMPLE = (f"--switch=20:{EXAMPLE}", "--switch=40:fsdp-tp2")
DEEP = ("layers=8", "embed=128", "heads=8", "mlp=512", "context=64", "seq_len=64", "batch_size=32")
SCHEDULES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2))
"""Micro-batches and repeats."""
TIMED = 4
LOSSES = {"": "", "last loss": "{:.4f}", "largest relative difference to dp": "{:.1e}"}
BUBBLE = {
    "micro-batches": "",
    "repeats": "",
    "ticks as compiled": "{}",
    "bubble": "part",
    "processor time of a step": "{:.2f} s",
    "to that of one": "{:.2f}",
    "(R M + 1) ÷ 2 R M": "{:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bubble", action="store_true", help="no losses")
    options = arguments(parser)
    print(f"{versions()}\n")
    if not options.bubble:
        with Table("long/pipeline", LOSSES, options.record, "python tests/long/pipeline.py") as table:
            compare_losses(table)
    print()
    with Table("long/bubble", BUBBLE, options.record, "python tests/long/pipeline.py --bubble") as table:
        measure_bubble(table)


def compare_losses(table: Table) -> None:
    cases = {"dp": ["--preset=dp"], "pp2": ["--preset=pp2"], "dp-tp2-pp2": ["--preset=dp-tp2-pp2"]}
    cases["pp2-interleaved"] = [f"--preset={EXAMPLE}"]
    for route in (ROUTE, INTO_EXAMPLE):
        cases[" ".join(("dp", *route))] = ["--preset=dp", *route]
    plain: list[float] = []
    for name, chosen in cases.items():
        settings = [f"--set={setting}" for setting in SMALL]
        with tempfile.TemporaryDirectory() as folder:
            found = losses(events([f"--steps={STEPS}", "--devices=8", *settings, *chosen], folder))
        plain = plain or found
        largest = max(abs(a - b) / a for a, b in zip(plain, found, strict=True))
        table.add(name, found[-1], largest)


def measure_bubble(table: Table) -> None:
    first = None
    for microbatches, repeats in SCHEDULES:
        ticks, bubble, seconds = step_seconds(microbatches, repeats)
        first = first or seconds
        predicted = (repeats * microbatches + 1) / (2 * repeats * microbatches)
        table.add(microbatches, repeats, ticks, bubble, seconds, seconds / first, predicted)


def step_seconds(microbatches: int, repeats: int) -> tuple[int, float, float]:
    """Ticks in the compiled program, bubble, and the median processor time of a step."""
    import jax
    import msgspec
    import numpy as np
    from shardtui.engine.models.task import Batch, Task
    from shardtui.engine.program.memory import keep_freed_blocks
    from shardtui.engine.program.placement import place
    from shardtui.engine.program.program import compile_initial_state, compile_program
    from shardtui.engine.spec.config import RunConfig
    from shardtui.engine.spec.model_choice import load_model
    from shardtui.engine.spec.preset_reader import load_preset

    keep_freed_blocks()
    model = load_model("nano", DEEP)
    config = RunConfig(run="x", model_name="nano", model=model.model, training=model.training, preset="pp2")
    task = Task(config, "cpu")
    preset = msgspec.structs.replace(load_preset("pp2"), microbatches=microbatches, pipeline_repeats=repeats)
    program = compile_program(task, place(task, preset, jax.devices()))
    tokens = np.zeros((model.training.batch_size, model.training.seq_len), np.int32)
    batch = Batch(*(jax.device_put(tokens, sharding) for sharding in program.placement.batch_shardings))
    state, seconds = compile_initial_state(task, program.placement)(), []
    for _ in range(TIMED + 1):
        began = time.process_time()
        state, loss = program.step(state, batch)
        loss.block_until_ready()
        seconds.append(time.process_time() - began)
    moves = [info for info in program.description.collectives or () if info.kind == "collective-permute"]
    assert program.description.pipeline
    return max(info.count or 0 for info in moves), program.description.pipeline.bubble, median(seconds[1:])


if __name__ == "__main__":
    main()
