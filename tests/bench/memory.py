"""The peak memory of a switch, beyond that of the state that it moves."""

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
from shardtui.engine.models.task import TrainState
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.program.reshard import Transfers

from ..suite import memory, printed
from .figure import Figure, at_most
from .plain import config, placed

SETTINGS = ("layers=11", "embed=512", "heads=8", "mlp=2048")
"""35 M parameters, 418 MB with two moments."""
LOW = "--low-memory"
MODES = ("switch", LOW)
PAIRS = (("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "fsdp-tp2"), ("fsdp", "dp"), ("hsdp", "fsdp"))
REPEATS = 5
RETURNS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Has malloc return freed memory to the system at once, so that resident memory is memory in use."""


def run() -> Iterator[Figure]:
    for source, target in PAIRS:
        for mode, row in zip(MODES, measured_alone("memory", source, target), strict=True):
            yield _figure(f"{mode}, {source} → {target}", mode, *row)


def measured_alone(suite: str, *arguments: str) -> list[list[int]]:
    """Returns the numbers in each line that a suite prints in a process of its own, whose resident memory is read."""
    answer = printed("-m", f"tests.bench.{suite}", *arguments, **RETURNS_FREED_MEMORY)
    return [[int(word) for word in line.split()] for line in answer.splitlines()]


def _figure(name: str, mode: str, before: int, after: int, largest: int, *peaks: int) -> Figure:
    freed = min(before, after) if mode == LOW else 0
    less = f" - {freed / 1e6:,.0f} MB that are freed" if freed else ""
    parts, against = [peak / (after + 2 * largest - freed) for peak in peaks], f"{after / 1e6:,.0f} MB"
    return at_most(1.0, name, parts, "×", f"{against} + 2 × {largest / 1e6:,.0f} MB{less}")


def bytes_of(state: TrainState) -> int:
    """Returns the bytes of all shards on all devices, which this process holds."""
    return sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)


def _measure(source: str, target: str) -> None:
    """Prints one line per mode: bytes of the source, of the destination and of its largest leaf, and peaks of moves."""
    (task, here), (_, there) = (placed(config(*SETTINGS, preset=name)) for name in (source, target))
    transfers = Transfers()
    transfers.prepare(task.abstract_state, here.state_shardings, there.state_shardings)
    for mode in MODES:
        peaks: list[int] = []
        for _ in range(REPEATS):
            state = compile_initial_state(here)()
            jax.block_until_ready(state)
            before, resident = bytes_of(state), memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
            moved = transfers.move(state, there.state_shardings, free_source=mode == LOW)
            peaks.append(memory("VmHWM") - resident)
            after = bytes_of(moved)
            largest = max(bytes_of(TrainState(leaf, (), (), ())) for leaf in jax.tree.leaves(moved))
            del state, moved
        print(before, after, largest, *peaks)


if __name__ == "__main__":
    _measure(*sys.argv[1:])
