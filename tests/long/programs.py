"""Measures the host memory of compiled programs against the estimate by which they are kept: `python
tests/long/programs.py [--record]` (a minute or two)."""

import argparse
import ctypes
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import load_preset

from tests.suite import memory, versions
from tests.table import Table, arguments

MODELS = {"nano": ("fsdp", "tp", "dp-tp2", "hsdp"), "nano-moe": ("fsdp", "tp", "dp-ep4")}
COLUMNS = {"model": "", "preset": "", "resident memory more": "bytes", "estimated": "bytes"}


def resident() -> int:
    """Without what nothing refers to any more."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory("VmRSS")


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    with Table("long/programs", COLUMNS, options.record) as table:
        for name, presets in MODELS.items():
            compare(table, name, presets)


def compare(table: Table, name: str, presets: tuple[str, ...]) -> None:
    chosen = choose_model(name)
    config = RunConfig(run="x", model_name=name, model=chosen.model, training=chosen.training, preset="dp")
    known = {preset: load_preset(preset) for preset in ("dp", *presets)}
    compiler = Compiler(Task(config, "cpu"), known, jax.devices(), Path("nowhere"))
    compiler.compiled("dp").compile_state_functions()  # the first one brings the compiler itself
    for preset in presets:
        before = resident()
        program = compiler.compiled(preset)
        program.compile_state_functions()
        table.add(name, preset, resident() - before, program.host_bytes)
    compiler.close()


if __name__ == "__main__":
    main()
