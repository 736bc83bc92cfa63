"""Steps compared with MaxText's, compiled by the same TPU compiler for the same slice.

Needs MaxText beside this package, on Python 3.12, but no TPU: `pip install 'maxtext[tpu]==0.2.5'`.
`python -m tests.bench.maxtext ours|auto|theirs SLICE MODEL FSDP TENSOR SEQUENCES SEQ_LEN splash|plain FOLDER` compiles
one side and writes its text and its peak of memory. All recompute everything but `auto`: ours with `remat = "auto"`.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.task import Task
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.planning.automatic_remat import fitting_remats, usable
from shardtui.engine.profiling.predicted import predicted_breakdown
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.spec.config import MARGIN
from shardtui.engine.spec.model_choice import HF
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

from ..suite import printed
from .figure import Figure, at_most
from .plain import config

LLAMA_2_7B = """{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
}"""
"""Sizes as Meta published them (Touvron et al. 2023, "Llama 2"), in the form of `transformers`."""


@dataclass(frozen=True)
class Row:
    """What both compile: a model by its name here and in MaxText, in `fsdp` parts of the parameters and `tensor` parts
    of heads and MLP, with a global batch of so many sequences."""

    topology: str
    model: str
    fsdp: int
    tensor: int
    sequences: int
    seq_len: int

    def __str__(self) -> str:
        mesh = f"fsdp{self.fsdp}" + f"-tensor{self.tensor}" * (self.tensor > 1)
        return f"{self.model} {self.sequences}×{self.seq_len:,}, {mesh}"

    @property
    def chips(self) -> int:
        return self.fsdp * self.tensor


ROWS = (
    Row("v5p:4x4x4", "gpt3-175b", 16, 4, 64, 2048),
    Row("v5p:4x4x4", "gpt3-175b", 16, 4, 16, 8192),
    Row("v5p:4x4x4", "gpt3-175b", 64, 1, 64, 2048),
    Row("v5p:4x4x4", "llama3-70b", 16, 4, 64, 2048),
    Row("v5p:4x4x4", "llama3-70b", 64, 1, 64, 2048),
    Row("v5p:2x2x4", "mixtral-8x7b", 16, 1, 32, 4096),
    Row("v5p:2x2x2", "llama2-7b", 8, 1, 16, 4096),
)
ATTENTIONS = ("splash", "plain")


class Step(NamedTuple):
    """What the compiler says of a step, per device: bytes, and the seconds of its schedule, kernels aside."""

    peak: float
    sent: float
    seconds: float


def run() -> Iterator[Figure]:
    """Compares peak memory, bytes sent and scheduled seconds; nothing without MaxText."""
    if find_spec("maxtext") is None:
        print("maxtext: skipped: it is not installed: pip install 'maxtext[tpu]==0.2.5'", file=sys.stderr)
        return
    for row in ROWS:
        yield from _figures(row)


def _figures(row: Row) -> Iterator[Figure]:
    ours, theirs = ({each: compiled(side, row, each) for each in ATTENTIONS} for side in ("ours", "theirs"))
    peak, sent = (min(getattr(each, what) for each in theirs.values()) for what in ("peak", "sent"))
    own = ours["splash"]
    yield at_most(1.0, f"{row}: peak", [own.peak / peak], "×", f"{peak / 1e9:.1f} GB")
    yield at_most(0.78 if row.tensor == 1 else 0.95, f"{row}: sent", [own.sent / sent], "×", f"{sent / 1e9:,.0f} GB")
    for attention in ATTENTIONS:
        seconds = theirs[attention].seconds
        value = ours[attention].seconds / seconds
        yield at_most(0.92, f"{row}: scheduled with {attention}", [value], "×", f"{seconds:.3g} s")
    value, seconds = compiled("auto", row, "splash").seconds, theirs["splash"].seconds
    yield at_most(0.85, f"{row}: scheduled with splash, remat auto", [value / seconds], "×", f"{seconds:.3g} s")


def compiled(side: str, row: Row, attention: str) -> Step:
    """Compiles one side in a process of its own and reads its text."""
    with tempfile.TemporaryDirectory() as folder:
        printed("-m", "tests.bench.maxtext", side, *map(str, astuple(row)), attention, folder)
        module, peak = parse(Path(folder, "step.hlo").read_text()), float(Path(folder, "peak").read_text())
    mesh = {"fsdp": row.fsdp, "tensor": row.tensor}
    sent = sum(flow.bytes_sent for flow in flows(inventory(module, mesh)))
    return Step(peak, sent, predicted_breakdown(module, mesh, load_topology(row.topology)).step_seconds)


def _ours(row: Row, attention: str, remat: str = "true") -> Any:
    sizes = (f"batch_size={row.sequences}", f"seq_len={row.seq_len}", f"context={row.seq_len}")
    settings = (*sizes, f"attention={attention}", "dropout=0", f"remat={remat}")  # MaxText's GPT-3 has no dropout
    preset = load_preset(f"fsdp{row.fsdp}-model{row.tensor}" if row.tensor > 1 else "fsdp")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(LLAMA_2_7B)
        name = f"{HF}{directory}" if row.model == "llama2-7b" else row.model
        task = Task(config(*settings, name=name, preset=preset.name, devices=row.chips), "tpu")
    slice_ = load_topology(row.topology)
    devices, capacity = find_slice(slice_), usable([slice_.chip.memory], MARGIN)
    remats = partial(fitting_remats, task, devices, capacity) if remat == "auto" else None
    with closing(Compiler(task, {}, devices, Path(), remats=remats, capacity=capacity)) as compiler:
        return compiler.compiled(preset.name).step


def _theirs(row: Row, attention: str) -> Any:
    """Returns MaxText's compiled step, caught as its own command compiles it."""
    train_compile = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    caught: list[Any] = []
    compile_step = train_compile.jit_and_compile
    train_compile.jit_and_compile = lambda *arguments: caught.append(compile_step(*arguments)) or caught[-1]
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            *(f"compile_topology=v5p-{2 * row.chips}", "compile_topology_num_slices=1", f"model_name={row.model}"),
            *(f"per_device_batch_size={row.sequences / row.chips}", f"max_target_length={row.seq_len}"),
            *(f"ici_fsdp_parallelism={row.fsdp}", f"ici_tensor_parallelism={row.tensor}"),
            f"attention={'flash' if attention == 'splash' else 'dot_product'}",
            *("remat_policy=full", "dataset_type=synthetic", f"base_output_directory={folder}"),
        )
        train_compile.main(["train_compile", *settings])
    return caught[0]


def _main(side: str, topology: str, model: str, *others: str) -> None:
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    *numbers, attention, folder = others
    row = Row(topology, model, *map(int, numbers))
    step = _theirs(row, attention) if side == "theirs" else _ours(row, attention, "auto" if side == "auto" else "true")
    Path(folder, "step.hlo").write_text(step.as_text())
    Path(folder, "peak").write_text(str(step.memory_analysis().peak_memory_in_bytes))


if __name__ == "__main__":
    _main(*sys.argv[1:])
