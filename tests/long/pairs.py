"""Does the state survive a switch between any two presets? `python tests/long/pairs.py` moves one from each to each,
verifies every bit, and prints how many there were (two minutes on two idle cores).
"""

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.program import compile_initial_state, compile_program, place
from shardtui.engine.spec.preset_files import preset_files
from shardtui.engine.spec.preset_reader import load_preset
from tests.test_reshard import move_between_all

from tests import conftest


def main() -> None:
    task = Task(conftest.tiny_config(model=conftest.WIDE, training=conftest.BATCHES), "cpu")
    names = [name for name in preset_files("parallelism") if name not in conftest.OF_EXPERTS]
    programs = [compile_program(task, place(task, load_preset(name), jax.devices())) for name in names]
    state = conftest.step(compile_initial_state(task, programs[0].placement)(), programs[0], steps=3)
    began = time.perf_counter()
    move_between_all(state, programs)
    pairs = len(names) * (len(names) - 1)
    print(
        f"Python {sys.version.split()[0]}, jax {version('jax')}: {pairs} ordered pairs of {len(names)} presets, ",
        end="",
    )
    print(f"every bit of {len(jax.tree.leaves(state))} arrays kept ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
