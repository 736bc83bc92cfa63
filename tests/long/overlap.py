"""How much of its traffic the TPU compiler overlaps with computation, by its options: `python tests/long/overlap.py
[--record] [--texts FOLDER]` (thirteen compilations, of some minutes each) needs the extra `tpu`, no TPU.

With `--texts`, compiled texts are kept in the folder, and those that it has are not compiled again.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from jax.stages import Lowered
from shardtui.engine.analysis.collectives import inventory
from shardtui.engine.analysis.hlo import Module, parse
from shardtui.engine.analysis.traffic import flows, overlapped_share
from shardtui.engine.models.task import Task
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_step
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

from tests.cycles import estimated_cycles
from tests.suite import versions
from tests.table import Table, arguments

GATHER = "xla_enable_async_all_gather"
FUSION = "xla_tpu_enable_async_collective_fusion"
FUSED_GATHER = f"{FUSION}_fuse_all_gather"
THREE = (FUSION, GATHER, FUSED_GATHER)
COMBINED = (*THREE, f"{FUSION}_multiple_steps", "xla_tpu_overlap_compute_collective_tc")
"""Options of the compiler, set to true together: those of MaxText's scripts for large models."""
WITH_REDUCTIONS = (*COMBINED, "xla_enable_async_all_reduce", f"{FUSION}_fuse_all_reduce")
COLUMNS = {
    "model": "",
    "preset": "",
    "options": "",
    "sent": "bytes",
    "overlapped": "part",
    "peak": "bytes",
    "estimated cycles": "{:.3e}",
}


class Case(NamedTuple):
    """A step to compile."""

    model: str
    settings: tuple[str, ...]
    topology: str
    preset: str
    options: tuple[tuple[str, ...], ...] = ((), COMBINED, WITH_REDUCTIONS)


CASES = (
    Case(
        *("gpt3-175b", ("batch_size=64",), "v5p:4x4x4", "fsdp"),
        ((), (GATHER,), (FUSED_GATHER,), (FUSION,), THREE, COMBINED, WITH_REDUCTIONS),
    ),
    Case("gpt3-175b", ("batch_size=64",), "v5p:4x4x4", "fsdp-tp4"),
    Case("gpt2-xl", ("batch_size=128", "remat=true"), "v6e:4x4", "fsdp"),
)


class Program:
    """A case, lowered when it is first compiled."""

    def __init__(self, case: Case, texts: Path) -> None:
        self.case, self.texts = case, texts
        self.mesh = load_preset(case.preset).sizes(load_topology(case.topology).devices)

    @cached_property
    def lowered(self) -> Lowered:
        case, preset = self.case, load_preset(self.case.preset)
        loaded, topology = load_model(case.model, case.settings), load_topology(case.topology)
        config = RunConfig(
            run="plan",
            model_name=case.model,
            model=loaded.model,
            training=loaded.training,
            preset=preset.name,
            devices=topology.devices,
        )
        task = Task(config, "tpu")
        return trace_step(task, place(task, preset, find_slice(topology))).lower()

    def compiled(self, options: tuple[str, ...]) -> tuple[Module, int]:
        """The compiled step and its peak of memory."""
        name = f"{self.case.model}-{self.case.preset}-{_label(options)}".replace(" ", "-")
        text, peak = self.texts / f"{name}.hlo", self.texts / f"{name}.peak"
        if not peak.exists():
            step = self.lowered.compile(compiler_options=dict.fromkeys(options, True))
            memory = step.memory_analysis()
            assert memory is not None
            text.write_text(step.as_text() or "")
            peak.write_text(str(memory.peak_memory_in_bytes))
        return parse(text.read_text()), int(peak.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, help="a folder that keeps the compiled texts")
    options = arguments(parser)
    print(f"{versions()}\n")
    with contextlib.ExitStack() as stack:
        texts = options.texts or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        table = stack.enter_context(Table("long/overlap", COLUMNS, options.record, "python tests/long/overlap.py"))
        for case in CASES:
            program = Program(case, texts)
            for names in case.options:
                measure(table, program, names)


def measure(table: Table, program: Program, options: tuple[str, ...]) -> None:
    module, peak = program.compiled(options)
    found, case = flows(inventory(module, program.mesh)), program.case
    sent = sum(flow.bytes_sent for flow in found)
    label = f"{case.model}, {case.topology}, {' '.join(case.settings)}"
    table.add(label, case.preset, _label(options), sent, overlapped_share(found), peak, estimated_cycles(module))


def _label(options: tuple[str, ...]) -> str:
    return (
        {THREE: "these three", COMBINED: "the five", WITH_REDUCTIONS: "the seven"}.get(options)
        or " ".join(options)
        or "none"
    )


if __name__ == "__main__":
    main()
