"""The cost of digests of a 1 GB state compared with the sums of older versions: alone, in a switch and in a save."""

import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np
from etils import epath
from shardtui.engine.checkpoint.arrays import save_arrays
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.digest import is_finite, linear_sums
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.program.reshard import Transfers
from shardtui.engine.program.state_function import digest_function, state_function
from shardtui.engine.spec.preset_reader import load_preset

from .figure import Figure, at_most
from .plain import config

SETTINGS = ("layers=12", "embed=768", "heads=16", "mlp=3072")
"""85 M parameters, 1.02 GB with two moments."""
ROUTE = ("fsdp", "tp")
REPEATS = 7


def run() -> list[Figure]:
    """Measures time and memory of both kinds of digest."""
    task = Task(config(*SETTINGS), "cpu")
    placements = [place(task, load_preset(name), jax.devices()) for name in ROUTE]
    abstract = [placement.abstract_state(task) for placement in placements]
    digests = [digest_function(state).compile() for state in abstract]
    sums = [state_function(linear_sums, state).compile() for state in abstract]
    state = compile_initial_state(task, placements[0])()
    return [
        *_alone(state, digests[0], sums[0]),
        *_switched(state, placements[1].state_shardings, digests, sums),
        *_saved(state, digests[0], sums[0], state_function(is_finite, abstract[0]).compile()),
    ]


def _alone(state: TrainState, digest: Any, summed: Any) -> list[Figure]:
    pairs = [(_seconds(digest, state), _seconds(summed, state)) for _ in range(REPEATS)]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    against = f"sums: {median(old for _, old in pairs):.2f} s"
    kept = [f"{ask.memory_analysis().temp_size_in_bytes * 8 / 1e6:,.0f} MB" for ask in (digest, summed)]
    return [
        at_most(
            1.5,
            f"digests of {size / 1e9:.2f} GB on 8 devices ÷ the older sums",
            [n / o for n, o in pairs],
            "×",
            against,
        ),
        at_most(
            1.0,
            "memory that they take ÷ the older sums",
            [digest.memory_analysis().temp_size_in_bytes / summed.memory_analysis().temp_size_in_bytes],
            "×",
            " against ".join(kept),
        ),
    ]


def _switched(state: TrainState, target: TrainState, digests: list[Any], sums: list[Any]) -> list[Figure]:
    transfers = Transfers()
    transfers.move(state, target)

    def switch(questions: list[Any]) -> tuple[float, float]:
        """Returns the seconds of the switch, and those of its digests."""
        before = _seconds(questions[0], state)
        began = time.perf_counter()
        moved = transfers.move(state, target)
        jax.block_until_ready(moved)
        moving = time.perf_counter() - began
        asking = before + _seconds(questions[1], moved)
        return moving + asking, asking

    pairs = [(switch(digests), switch(sums)) for _ in range(REPEATS)]
    against = f"with sums: {median(old for _, (old, _) in pairs):.2f} s"
    name = " → ".join(ROUTE)
    return [
        at_most(
            1.0, f"switch {name} with digests ÷ with the older sums", [n[0] / o[0] for n, o in pairs], "×", against
        ),
        at_most(
            0.5, "part of the switch that the digests take", [n[1] / n[0] for n, _ in pairs], "", "moving: the rest"
        ),
    ]


def _saved(state: TrainState, digest: Any, summed: Any, finite: Any) -> list[Figure]:
    def stall(question: Any) -> tuple[float, float]:
        """Returns the seconds of the stall, and those of its digests."""
        with tempfile.TemporaryDirectory() as folder:
            asking = _seconds(question, state)
            began = time.perf_counter()
            bool(finite(state))
            copied = save_arrays(epath.Path(folder), state)
            whole = asking + time.perf_counter() - began
            copied.result()
        return whole, asking

    pairs = [(stall(digest), stall(summed)) for _ in range(REPEATS)]
    against = f"with sums: {median(old for _, (old, _) in pairs):.2f} s"
    return [
        at_most(
            1.0, "stall of a save with digests ÷ with the older sums", [n[0] / o[0] for n, o in pairs], "×", against
        ),
        at_most(
            0.5, "part of the save that the digests take", [n[1] / n[0] for n, _ in pairs], "", "copying: the rest"
        ),
    ]


def _seconds(ask: Callable[[TrainState], jax.Array], state: TrainState) -> float:
    began = time.perf_counter()
    np.asarray(ask(state))
    return time.perf_counter() - began
