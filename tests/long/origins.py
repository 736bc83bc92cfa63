"""Collectives estimated by Shardy's passes against those of the CPU's compiler, for nano, docs/examples and programs of
other libraries: `python tests/long/origins.py [PRESET …] [--record]` (ten minutes on two cores).
"""

import argparse
import os
from collections.abc import Iterator

import cpu_devices  # noqa: F401

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner

import jax
from jax.sharding import AxisType
from shardtui.engine.explain.compiled import with_compiled
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import by_flow
from shardtui.engine.explain.names import kept_names
from shardtui.engine.explain.programs import lowered
from shardtui.engine.explain.step import explained
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import Placement, describe_preset, place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.preset_reader import load_presets

from tests.bench.plain import config
from tests.explain.programs import equinox_mlp, haiku_mlp, linen_transformer, manual_ring, nnx_decoder
from tests.models.test_user_model import EXAMPLES, FOLDER
from tests.suite import versions
from tests.table import Table, arguments

LEAST_OF_SUM = 0.001
"""Share of a step's bytes from which a collective counts."""
Flows = dict[tuple[str, tuple[str, ...]], int]
"""Kind and mesh axes to bytes."""
COLUMNS = {"model or program": "", "preset": "", "kinds × axes": "{:,}", "within 1 %": "{:,}"}
COLUMNS |= {"estimated": "bytes", "compiled": "bytes"}
LIBRARIES = (equinox_mlp, haiku_mlp, linen_transformer, nnx_decoder, manual_ring)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    options = arguments(parser)
    print(f"{versions()}\n")
    with Table("long/origins", COLUMNS, options.record) as table:
        for name in ("nano", "nano-moe", *EXAMPLES):
            for preset, *found in steps(str(FOLDER / name) if name in EXAMPLES else name, options.presets):
                add(table, name, preset, *found)
        if not options.presets:
            compare_libraries(table)


def steps(model: str, wanted: list[str]) -> Iterator[tuple[str, Flows, Flows]]:
    """Yields the presets that fit, experts with a model that has some, each with the estimate and the compiled step."""
    task = Task(config(name=model), "cpu")
    for preset in load_presets()[0]:
        is_for_experts = bool(preset.axes("experts"))
        if is_for_experts != (model == "nano-moe") or (wanted and preset.name not in wanted):
            continue
        if describe_preset(task, preset, jax.devices()).fits:
            yield preset.name, *flows(task, place(task, preset, jax.devices()))


def flows(task: Task, placement: Placement) -> tuple[Flows, Flows]:
    estimated = by_flow(explained(placement).collectives)
    return estimated, by_flow(compile_program(placement).description.collectives or ())


def compare_libraries(table: Table) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), kept_names():
        for library in LIBRARIES:
            name = library.__name__.rpartition(".")[2]
            add(table, name, "its own", *lowered_flows(lowered(library.program(), name), name))


def lowered_flows(program: jax.stages.Lowered, name: str) -> tuple[Flows, Flows]:
    found = with_compiled(program, explain(program.compiler_ir("stablehlo"), name), jax.default_backend())
    return by_flow(found.collectives), by_flow((found.compiled and found.compiled.collectives) or ())


def add(table: Table, model: str, program: str, estimated: Flows, found: Flows) -> None:
    pairs = [(estimated.get(flow, 0), found.get(flow, 0)) for flow in {*estimated, *found}]
    pairs = [pair for pair in pairs if max(pair) >= LEAST_OF_SUM * sum(found.values())]
    equal = sum(abs(one - other) <= 0.01 * max(one, other) for one, other in pairs)
    if equal < len(pairs):  # a step that agrees is in no table
        table.add(model, program, len(pairs), equal, *(sum(pair[side] for pair in pairs) for side in (0, 1)))


if __name__ == "__main__":
    main()
