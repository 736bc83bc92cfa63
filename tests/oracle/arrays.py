"""The numbers of all arrays against NumPy in float64 on gathered arrays."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from shardtui.engine.models.array import gradient_name
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.array_numbers import compile_numbers, update_name
from shardtui.engine.program.placement import place
from shardtui.engine.spec.model_config import Rope
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.number_events import ArrayNumbers, ExpertNumbers

from ..conftest import tiny_config, tiny_model

MOE = {"experts": 8, "experts_per_token": 2, "capacity_factor": 1.25}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"rope": Rope(), "activation": "swiglu", "norm": "rms", "biases": "none", "tied": False},
    "local": {"rope": Rope(), "window": 8, "global_every": 2, "layers": 5},
    "moe": MOE,
    "dropless": MOE | {"capacity_factor": 0.0},
}
SUMS_OF_OTHER_ORDER = ("gradient", "update")
"""Kinds whose elements may be exactly 0 under one preset, and next to it under another."""


class Whole:
    """A family's task, and its state, gradients, updates and logits on one device. Moments are drawn, far from 0: next
    to 0, rounding would decide the sign of an update of Adam, which divides by them."""

    def __init__(self, family: str) -> None:
        self.task = Task(tiny_config(model=tiny_model(**FAMILIES[family])), "cpu")
        state, chance = jax.device_get(jax.jit(self.task.initial_state)()), np.random.default_rng(1)
        moments = jax.tree.map(
            lambda leaf: chance.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf,
            state.opt_state,
        )
        self.state: TrainState = state._replace(opt_state=moments)
        self.batch = tokens(self.task)
        step = jax.jit(self.task.gradients_and_updates)(self.state, self.batch)
        logits = jax.jit(self.task.logits)(self.state.params, self.batch.inputs)
        self._step, self._logits = jax.device_get((step, logits))

    def arrays(self) -> Iterator[tuple[str, str, np.ndarray, bool]]:
        """Yields name, kind and elements of each floating-point array, and whether its dim 0 is the layers."""
        for array, leaf in zip(*map(jax.tree.leaves, (self.task.state_arrays, self.state)), strict=True):
            if leaf.dtype.kind == "f":
                yield array.names[0], array.kind, leaf, array.is_stacked
        kinds = ("gradient", self._step.gradients, gradient_name), ("update", self._step.updates, update_name)
        for kind, tree, name in kinds:
            for array, leaf in zip(*map(jax.tree.leaves, (self.task.state_arrays.params, tree)), strict=True):
                yield name(array.names[0]), kind, leaf, array.is_stacked
        yield "logits", "activation", self._logits, False

    def measured(self, preset: str) -> tuple[list[ArrayNumbers], ExpertNumbers | None]:
        """Raises `UserError` where the preset does not fit."""
        placement = place(self.task, load_preset(preset), jax.devices())
        placed = jax.device_put((self.state, self.batch), (placement.state_shardings, placement.batch_shardings))
        return compile_numbers(placement).measure(*placed)

    def errors(self, found: list[ArrayNumbers]) -> dict[str, float]:
        """Returns the largest relative error of the numbers by kind of array."""
        by_name, worst = {array.name: array for array in found}, dict[str, float]()
        for name, kind, elements, is_stacked in self.arrays():
            assert by_name[name].is_stacked == is_stacked, name
            worst[kind] = max(worst.get(kind, 0.0), error(by_name[name], elements))
        return worst


def tokens(task: Task) -> Batch:
    shape = task.config.training.batch_size, task.config.training.seq_len + 1
    found = np.random.default_rng(0).integers(0, 256, shape, np.int32)
    return Batch(found[:, :-1], found[:, 1:])


def error(found: ArrayNumbers, elements: np.ndarray) -> float:
    """Returns the largest relative error in the numbers of an array; of means, relative to the largest rms."""
    rows = elements.astype(np.float64).reshape(len(elements) if found.is_stacked else 1, -1)
    rms = np.sqrt(np.mean(np.square(rows), axis=1))
    expected = {
        "rms": (rms, rms),
        "max": (np.max(np.abs(rows), axis=1), np.max(np.abs(rows), axis=1)),
        "mean": (np.mean(rows, axis=1), np.full(rms.shape, rms.max())),
        "zeros": (np.mean(rows == 0, axis=1), np.ones(rms.shape)),
        "nonfinite": (np.zeros(rms.shape), np.ones(rms.shape)),
    }
    if found.kind in SUMS_OF_OTHER_ORDER:
        del expected["zeros"]
    differences = [
        np.max(np.abs(getattr(found, name) - value) / np.where(scale > 0, scale, 1.0))
        for name, (value, scale) in expected.items()
    ]
    return float(max(differences))
