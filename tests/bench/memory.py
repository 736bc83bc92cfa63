"""Memory of a switch, beyond that of the state it moves."""

import subprocess
import sys
from pathlib import Path

import jax
from shardtui.engine.preset import load_preset
from shardtui.engine.program import make_state, place
from shardtui.engine.reshard import Movers
from shardtui.engine.task import Task, TrainState

from .figure import Figure, at_most
from .plain import config

SETTINGS = ("layers=11", "embed=512", "heads=8", "mlp=2048")
"""35 M parameters: with two moments 418 MB."""
LOW = "--low-memory"
REPEATS = 5
PAIRS = {
    "switch": (("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "fsdp-tp2"), ("fsdp", "dp"), ("hsdp", "fsdp")),
    LOW: (("fsdp", "tp"), ("fsdp", "fsdp-tp2"), ("fsdp", "dp")),
}


def run() -> list[Figure]:
    """Each pair in a process of its own, whose resident memory is read."""
    return [_figure(source, target, mode) for mode, pairs in PAIRS.items() for source, target in pairs]


def _figure(source: str, target: str, mode: str) -> Figure:
    command = [sys.executable, "-m", "tests.bench.memory", source, target, mode]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    peaks, before, destination, largest = ([int(word) for word in line.split()] for line in answer.stdout.splitlines())
    allowed = destination[0] + 2 * largest[0]
    baseline = f"{destination[0] / 1e6:,.0f} MB + 2 × {largest[0] / 1e6:,.0f} MB"
    if mode == LOW:  # the source goes while the destination comes
        allowed -= min(before[0], destination[0])
        baseline += f" - {min(before[0], destination[0]) / 1e6:,.0f} MB that are freed"
    return at_most(
        1.0,
        f"{mode}: peak beyond the source, {source} → {target} ÷ allowed",
        [peak / allowed for peak in peaks],
        "×",
        baseline,
    )


def _bytes(state: TrainState) -> int:
    """Of all shards on all devices: they stand in this process."""
    return sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)


def _status(name: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _measure(source: str, target: str, mode: str) -> None:
    """Prints the peaks of some moves, the bytes of the source, of the destination, and of its largest leaf."""
    task = Task(config(*SETTINGS), "cpu")
    here, there = (place(task, load_preset(name), jax.devices()) for name in (source, target))
    movers, peaks = Movers(), []
    movers.prepare(task.abstract_state, here.state_shardings, there.state_shardings)
    for _ in range(REPEATS):
        state = make_state(task, here)
        jax.block_until_ready(state)
        held, before = _bytes(state), _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        moved = movers.move(state, there.state_shardings, frees=mode == LOW)
        peaks.append(_status("VmHWM") - before)
        destination = _bytes(moved)
        largest = max(_bytes(TrainState(leaf, (), (), ())) for leaf in jax.tree.leaves(moved))
        del state, moved
    print(*peaks)
    print(held, destination, largest, sep="\n")


if __name__ == "__main__":
    _measure(*sys.argv[1:])
