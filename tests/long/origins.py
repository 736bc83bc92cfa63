"""Collectives estimated by Shardy's passes against those of the CPU's compiler, for nano under every built-in
preset and for programs of one collective:
`python tests/long/origins.py [PRESET …] [--record]` (ten minutes on two cores).
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from jax.sharding import AxisType
from shardtui.engine.base import figures
from shardtui.engine.models.task import Task
from shardtui.engine.origins.agreement import by_flow
from shardtui.engine.origins.compiled import compiled
from shardtui.engine.origins.explain import explain
from shardtui.engine.origins.step import explained
from shardtui.engine.program.placement import Placement, describe_preset, place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import load_presets

from tests.origins.one_collective import DISPUTED, PROGRAMS
from tests.suite import versions
from tests.table import Table, arguments

LEAST = 10_000
"""Bytes of collectives that are left out: the loss, and norms of the gradients."""
Flows = dict[tuple[str, tuple[str, ...]], int]
"""Kind and mesh axes to bytes."""
COLUMNS = {
    "model": "",
    "preset or program": "",
    "collective": "",
    "over": "",
    "estimated": "bytes",
    "compiled": "bytes",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    options = arguments(parser)
    print(f"{versions()}\n")
    with Table("long/origins", COLUMNS, options.record) as table:
        for name in ("nano", "nano-moe"):
            compare(table, name, options.presets)
        if not options.presets:
            compare_programs(table)


def compare(table: Table, model: str, wanted: list[str]) -> None:
    choice = choose_model(model)
    config = RunConfig(run="origins", model_name=model, model=choice.model, training=choice.training, preset="dp")
    task = Task(config, "cpu")
    for preset in load_presets()[0]:
        is_for_experts = bool(preset.rules.get("experts"))
        if is_for_experts != (model == "nano-moe") or (wanted and preset.name not in wanted):
            continue
        if describe_preset(task, preset, jax.devices()).fits:
            add(table, model, task, place(task, preset, jax.devices()))


def add(table: Table, model: str, task: Task, placement: Placement) -> None:
    estimated = by_flow(explained(task, placement).collectives)
    found = by_flow(compile_program(task, placement).description.collectives or ())
    add_flows(table, model, placement.preset.name, estimated, found, LEAST)


def compare_programs(table: Table) -> None:
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        for program in (*PROGRAMS, DISPUTED):
            lowered = program.lower()
            estimated = explain(lowered.compiler_ir("stablehlo"), program.name)
            found = compiled(lowered, estimated).collectives or ()
            add_flows(table, "one collective", program.name, by_flow(estimated.collectives), by_flow(found))


def add_flows(table: Table, model: str, program: str, estimated: Flows, found: Flows, least: int = 1) -> None:
    for kind, axes in sorted({*estimated, *found}):
        sizes = [side.get((kind, axes), 0) for side in (estimated, found)]
        if max(sizes) >= least:
            table.add(model, program, kind, figures.over(axes), *sizes)


if __name__ == "__main__":
    main()
