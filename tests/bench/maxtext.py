"""GPT-3 175B and Llama 3 70B on 64 chips compared with MaxText, compiled by the same TPU compiler for the same slice.

Needs MaxText beside this package, on Python 3.12, but no TPU: `pip install 'maxtext[tpu]==0.2.5'`.
`python -m tests.bench.maxtext ours|theirs MODEL FSDP TENSOR SEQUENCES SEQ_LEN splash|plain FOLDER` compiles one side
and writes its text and its peak of memory.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.task import Task
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_step
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

from ..cycles import estimated_cycles
from ..suite import printed
from .figure import Figure, at_most
from .plain import config

TOPOLOGY, SAME_IN_MAXTEXT, CHIPS = "v5p:4x4x4", "v5p-128", 64


@dataclass(frozen=True)
class Row:
    """What both compile: a model by its name here and in MaxText, in `fsdp` parts of the parameters and `tensor` parts
    of heads and MLP, with a global batch of so many sequences."""

    model: str
    fsdp: int
    tensor: int
    sequences: int
    seq_len: int

    def __str__(self) -> str:
        mesh = f"fsdp{self.fsdp}" + f"-tensor{self.tensor}" * (self.tensor > 1)
        return f"{self.model} {self.sequences}×{self.seq_len:,}, {mesh}"


ROWS = (
    Row("gpt3-175b", 16, 4, 64, 2048),
    Row("gpt3-175b", 16, 4, 16, 8192),
    Row("gpt3-175b", 64, 1, 64, 2048),
    Row("llama3-70b", 16, 4, 64, 2048),
)
BARS = {"splash": 1.02, "plain": 1.0}
"""Cycles to reach, as a part of MaxText's, by attention."""


@dataclass(frozen=True)
class Step:
    """What the compiler says of a step, per device: bytes, and its estimates of all instructions × how often they run.
    Kernels have none."""

    peak: float
    sent: float
    cycles: float


def run() -> Iterator[Figure]:
    """Compares peak memory, bytes sent and cycles; nothing without MaxText."""
    if find_spec("maxtext") is None:
        print("maxtext: skipped: it is not installed: pip install 'maxtext[tpu]==0.2.5'", file=sys.stderr)
        return
    for row in ROWS:
        yield from _figures(row)


def _figures(row: Row) -> Iterator[Figure]:
    ours, theirs = ({each: compiled(side, row, each) for each in BARS} for side in ("ours", "theirs"))
    peak, sent = (min(getattr(each, what) for each in theirs.values()) for what in ("peak", "sent"))
    own = ours["splash"]
    yield at_most(1.02, f"{row}: peak", [own.peak / peak], "×", f"{peak / 1e9:.1f} GB")
    yield at_most(1.0, f"{row}: sent", [own.sent / sent], "×", f"{sent / 1e9:,.0f} GB")
    for attention, bar in BARS.items():
        cycles = theirs[attention].cycles
        value, against = ours[attention].cycles / cycles, f"{cycles / 1e9:.1f} G"
        yield at_most(bar, f"{row}: cycles with {attention}", [value], "×", against)


def compiled(side: str, row: Row, attention: str) -> Step:
    """Compiles one side in a process of its own and reads its text."""
    with tempfile.TemporaryDirectory() as folder:
        printed("-m", "tests.bench.maxtext", side, *map(str, astuple(row)), attention, folder)
        return _read(Path(folder), row)


def _read(folder: Path, row: Row) -> Step:
    module = parse((folder / "step.hlo").read_text())
    collectives = inventory(module, {"fsdp": row.fsdp, "tensor": row.tensor})
    sent = sum(flow.bytes_sent for flow in flows(collectives))
    return Step(float((folder / "peak").read_text()), sent, estimated_cycles(module) or 0)


def _ours(name: str, fsdp: int, tensor: int, sequences: int, seq_len: int, attention: str) -> Any:
    sizes = (f"batch_size={sequences}", f"seq_len={seq_len}", f"context={seq_len}")
    settings = (*sizes, f"attention={attention}", "dropout=0")  # MaxText's GPT-3 has no dropout
    preset = load_preset(f"fsdp{fsdp}-model{tensor}" if tensor > 1 else "fsdp")
    task = Task(config(*settings, name=name, preset=preset.name, devices=CHIPS), "tpu")
    return trace_step(task, place(task, preset, find_slice(load_topology(TOPOLOGY)))).lower().compile()


def _theirs(name: str, fsdp: int, tensor: int, sequences: int, seq_len: int, attention: str) -> Any:
    """Returns MaxText's compiled step, caught as its own command compiles it."""
    train_compile = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    caught: list[Any] = []
    compile_step = train_compile.jit_and_compile
    train_compile.jit_and_compile = lambda *arguments: caught.append(compile_step(*arguments)) or caught[-1]
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            *(f"compile_topology={SAME_IN_MAXTEXT}", "compile_topology_num_slices=1", f"model_name={name}"),
            *(f"per_device_batch_size={sequences / CHIPS}", f"max_target_length={seq_len}"),
            *(f"ici_fsdp_parallelism={fsdp}", f"ici_tensor_parallelism={tensor}"),
            f"attention={'flash' if attention == 'splash' else 'dot_product'}",
            *("remat_policy=full", "dataset_type=synthetic", f"base_output_directory={folder}"),
        )
        train_compile.main(["train_compile", *settings])
    return caught[0]


def _main(side: str, name: str, *sizes: str) -> None:
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    *numbers, attention, folder = sizes
    step = (_ours if side == "ours" else _theirs)(name, *map(int, numbers), attention)
    Path(folder, "step.hlo").write_text(step.as_text())
    Path(folder, "peak").write_text(str(step.memory_analysis().peak_memory_in_bytes))


if __name__ == "__main__":
    _main(*sys.argv[1:])
