"""The cost of digests of a 1 GB state: alone, in a switch and in a save."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from shardtui.engine.checkpoint.arrays import save_arrays
from shardtui.engine.models.task import TrainState
from shardtui.engine.program.digest import is_finite
from shardtui.engine.program.program import compile_initial_state, digest_function, state_function
from shardtui.engine.program.reshard import Transfers

from .figure import Figure, at_most, timed
from .plain import config, placed

SETTINGS = ("layers=12", "embed=768", "heads=16", "mlp=3072")
"""85 M parameters, 1.02 GB with two moments."""
ROUTE = ("fsdp", "tp")
REPEATS = 7


def run() -> list[Figure]:
    places = [placed(config(*SETTINGS, preset=name)) for name in ROUTE]
    abstract = [placement.abstract_state for _, placement in places]
    digests = [digest_function(state).compile() for state in abstract]
    state = compile_initial_state(places[0][1])()
    return [
        _memory(state, digests[0]),
        _switched(state, places[1][1].state_shardings, digests),
        _saved(state, digests[0], state_function(is_finite, abstract[0]).compile()),
    ]


def _memory(state: TrainState, digest: Any) -> Figure:
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    kept = digest.memory_analysis().temp_size_in_bytes * 8
    return at_most(0.001, "memory that digests take ÷ the state", [kept / size], "×", f"{size / 1e9:.2f} GB, 8 devices")


def _switched(state: TrainState, target: TrainState, digests: list[Any]) -> Figure:
    transfers = Transfers()
    transfers.move(state, target)

    def part() -> float:
        asking, began = _seconds(digests[0], state), time.perf_counter()
        moved = transfers.move(state, target)
        jax.block_until_ready(moved)
        moving = time.perf_counter() - began
        asking += _seconds(digests[1], moved)
        return asking / (moving + asking)

    name = f"part of the switch {' → '.join(ROUTE)} that the digests take"
    return at_most(0.5, name, [part() for _ in range(REPEATS)], "", "moving: the rest")


def _saved(state: TrainState, digest: Any, finite: Any) -> Figure:
    def part() -> float:
        with tempfile.TemporaryDirectory() as folder:
            asking = _seconds(digest, state)
            began = time.perf_counter()
            bool(finite(state))
            copied = save_arrays(epath.Path(folder), state)
            whole = asking + time.perf_counter() - began
            copied.result()
        return asking / whole

    name = "part of the save that the digests take"
    return at_most(0.5, name, [part() for _ in range(REPEATS)], "", "copying: the rest")


def _seconds(ask: Callable[[TrainState], jax.Array], state: TrainState) -> float:
    return timed(lambda: np.asarray(ask(state)))
