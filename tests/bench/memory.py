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

SETTINGS = ("layers=10", "embed=512", "heads=8", "mlp=2048")
"""32 M parameters: with two moments 380 MB."""
PAIRS = (("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "fsdp-tp2"), ("fsdp", "dp"), ("hsdp", "fsdp"))


def run() -> list[Figure]:
    """Each pair in a process of its own, whose resident memory is read."""
    return [_figure(*pair) for pair in PAIRS]


def _figure(source: str, target: str) -> Figure:
    command = [sys.executable, "-m", "tests.bench.memory", source, target]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    peaks, destination, largest = answer.stdout.splitlines()
    allowed = int(destination) + 2 * int(largest)
    return at_most(
        1.0,
        f"peak beyond the source, {source} → {target} ÷ destination + 2 × largest leaf",
        [int(peak) / allowed for peak in peaks.split()],
        "×",
        f"{int(destination) / 1e6:,.0f} MB + 2 × {int(largest) / 1e6:,.0f} MB",
    )


def _bytes(state: TrainState) -> int:
    """Of all shards on all devices: they stand in this process."""
    return sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)


def _status(name: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _measure(source: str, target: str, repeats: int = 5) -> None:
    """Prints the peaks of some moves, the bytes of the destination, and those of its largest leaf."""
    task = Task(config(*SETTINGS), "cpu")
    here, there = (place(task, load_preset(name), jax.devices()) for name in (source, target))
    movers, peaks = Movers(), []
    movers.prepare(task.abstract_state, here.state_shardings, there.state_shardings)
    for _ in range(repeats):
        state = make_state(task, here)
        jax.block_until_ready(state)
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        moved = movers.move(state, there.state_shardings)
        peaks.append(_status("VmHWM") - before)
        destination = _bytes(moved)
        largest = max(_bytes(TrainState(leaf, (), (), ())) for leaf in jax.tree.leaves(moved))
        del state, moved
    print(*peaks)
    print(destination)
    print(largest)


if __name__ == "__main__":
    _measure(*sys.argv[1:])
