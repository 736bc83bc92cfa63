"""Does the state survive a switch between any two presets? `python tests/long/pairs.py [--record]` moves one from each
to each, and verifies every bit (two minutes on two idle cores).
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state, compile_program
from shardtui.engine.spec.preset_files import preset_files
from shardtui.engine.spec.preset_reader import load_preset

from tests import conftest
from tests.program.test_reshard import move_between_all
from tests.suite import versions
from tests.table import Table, arguments

COLUMNS = {"ordered pairs": "{:,}", "presets": "{:,}", "arrays, every bit kept": "{:,}"}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    task = Task(conftest.tiny_config(model=conftest.WIDE, training=conftest.BATCHES), "cpu")
    names = [name for name in preset_files("parallelism") if name not in conftest.OF_EXPERTS]
    programs = [compile_program(task, place(task, load_preset(name), jax.devices())) for name in names]
    state = conftest.step(compile_initial_state(task, programs[0].placement)(), programs[0], steps=3)
    with Table("long/pairs", COLUMNS, options.record) as table:
        move_between_all(state, programs)
        table.add(len(names) * (len(names) - 1), len(names), len(jax.tree.leaves(state)))


if __name__ == "__main__":
    main()
