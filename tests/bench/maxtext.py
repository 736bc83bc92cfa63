"""GPT-3 175B and Llama 3 70B on 64 chips compared with MaxText, compiled by the same TPU compiler for the same slice.

Needs MaxText beside this package, on Python 3.12, but no TPU: `pip install 'maxtext[tpu]==0.2.5'`.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path

from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.traffic import flows

from ..cycles import estimated_cycles
from ..suite import printed
from .figure import Figure, at_most


@dataclass(frozen=True)
class Row:
    """What both compile."""

    model: str
    """Its name here and in MaxText."""
    fsdp: int
    """Parts of the parameters."""
    tensor: int
    """Parts of heads and MLP."""
    sequences: int
    """The global batch."""
    seq_len: int
    """Tokens of a sequence."""

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
    """What the compiler says of one step, per device."""

    peak: float
    """Bytes."""
    sent: float
    """Bytes."""
    cycles: float
    """Its estimates of all instructions × how often they run. Kernels have none."""


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
        printed("-m", "tests.bench.maxtext_step", side, *map(str, astuple(row)), attention, folder)
        return _read(Path(folder), row)


def _read(folder: Path, row: Row) -> Step:
    module = parse((folder / "step.hlo").read_text())
    collectives = inventory(module, {"fsdp": row.fsdp, "tensor": row.tensor})
    sent = sum(flow.bytes_sent for flow in flows(collectives))
    return Step(float((folder / "peak").read_text()), sent, estimated_cycles(module) or 0)
