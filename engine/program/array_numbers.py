"""Measures the numbers in every array of a step: of the state, gradients, updates, and activations with a name.

A program of its own repeats the step without changing the state. Each device reduces its own shards, layer by layer;
the host combines them in float64, each part of an array once. So the step is the same with and without it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Compiled

from ..models.array import Array, gradient_name
from ..models.task import TrainState
from ..parallel.constraints import activation_rules
from ..parallel.observed import Observed
from ..spec.config import UserModel
from ..wire.number_events import STANDS_OUT, UPDATE, ArrayNumbers, ExpertNumbers, ShardNumbers
from .placement import Placement, Tree
from .program import quick, rules_of
from .recorded_trace import Loop, Operation, Recorder, loops

MOST_SHARDS = 8
ROUTED, SENT, ROUTER_LOGITS = "blocks.mlp.masks", "blocks.mlp.dispatch", "blocks.mlp.router"
"""Names of the experts of each token, one-hot [B, T, K, E]; of their slots [B, T, E, C]; of the router's logits."""


class Sums(NamedTuple):
    """What is reduced of rows of elements; of those that are not finite, only their number."""

    max: Any
    """float32 [rows]: largest magnitude."""
    squares: Any
    """float32 [rows]: sum of (x ÷ max)²."""
    total: Any
    """float32 [rows]: sum of x ÷ max."""
    zeros: Any
    """int32 [rows]: elements that are exactly 0."""
    nonfinite: Any
    """int32 [rows]."""

    @classmethod
    def of(cls, x: jax.Array, is_stacked: bool) -> "Sums":
        """Reduces an array, [rows, …] if it is stacked, else to a single row's scalars."""
        axes = tuple(range(is_stacked, x.ndim))
        is_finite = jnp.isfinite(x)
        x = jnp.where(is_finite, x.astype(jnp.float32), 0.0)
        largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0.0)
        scaled = x / jnp.where(largest > 0, largest, 1.0)
        zeros, nonfinite = (jnp.sum(which, axis=axes, dtype=jnp.int32) for which in (is_finite & (x == 0), ~is_finite))
        squares, total = jnp.sum(jnp.square(scaled), axis=axes), jnp.sum(scaled, axis=axes)
        return cls(largest.squeeze(axes), squares, total, zeros, nonfinite)


@dataclass(frozen=True)
class Numbers:
    """A compiled program that measures, for one preset."""

    run: Compiled
    """State and batch to `Sums` [devices, rows] of all measured arrays, and by name `Named` of activations."""
    arrays: list[tuple[Array, NamedSharding]]
    """The measured arrays, in order."""
    sizes: dict[str, int]
    """Elements of each activation, of one layer."""
    device_parts: int
    """Parts over which the experts are split."""

    def measure(self, state: TrainState, batch: Tree) -> tuple[list[ArrayNumbers], ExpertNumbers | None]:
        """Waits for the step in flight. Changes nothing."""
        sums, activations = jax.device_get(self.run(state, batch))
        arrays = [*self._of_arrays(sums)]
        arrays += (_activation(name, named.sums, self.sizes[name]) for name, named in activations.items())
        return arrays, _experts(activations, self.sizes, self.device_parts) if ROUTED in activations else None

    def _of_arrays(self, sums: Sums) -> Iterator[ArrayNumbers]:
        row = 0
        for array, sharding in self.arrays:
            rows = _rows(array, sharding)
            yield _array(array, sharding, Sums(*(each[:, row : row + rows] for each in sums)))
            row += rows


class Named(NamedTuple):
    """What is kept of a named activation in each layer."""

    sums: Sums
    tokens: Any
    """float32 [layers, E]: the tokens of each expert, if the activation is `ROUTED`; else None."""


def compile_numbers(placement: Placement) -> Numbers:
    """Compiles the program. May be called in any thread."""
    task, arrays, shardings = placement.task, _measured(placement), placement.state_shardings
    sizes: dict[str, int] = {}

    def measure(state: TrainState, batch: Tree) -> tuple[Sums, dict[str, Named]]:
        step = task.gradients_and_updates(state, batch, shardings.params)
        trees = state.params, step.gradients, step.updates, state.opt_state, state.variables
        leaves = [leaf for leaf in jax.tree.leaves(trees) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        observed = Observed(names_only=True)
        with activation_rules(placement.mesh, placement.preset.rules, observed):  # without a pipeline: layer by layer
            key = jax.random.fold_in(jax.random.key(state.seed), state.step)
            arguments = state.params, state.variables, task.first_micro_batch(batch), key
            traced = jax.make_jaxpr(lambda *arguments: task.outcome(*arguments)[0])(*arguments)
        names = None if isinstance(task.config.model, UserModel) else observed.activations.keys()

        def keep(operation: Operation, _: int, x: jax.Array) -> Named | None:
            if (name := operation.given_name) is None or not (names is None or name in names):
                return None
            sizes[name] = x.size
            return Named(Sums.of(x, False), x.sum(axis=(0, 1, 2)) if name == ROUTED else None)

        recorder = Recorder(traced, keep)
        return _by_device(leaves, arrays), _by_name(recorder, recorder.evaluate(jax.tree.leaves(arguments)))

    replicated = NamedSharding(placement.mesh, PartitionSpec())
    with rules_of(placement):
        compiled = (
            jax.jit(measure, out_shardings=replicated, keep_unused=True)
            .lower(*placement.abstract_arguments)
            .compile(compiler_options=quick(placement))
        )
    return Numbers(compiled, arrays, sizes, placement.preset.parts("experts", placement.mesh.size))


def _by_name(recorder: Recorder, kept: Mapping[tuple[int, int], Named]) -> dict[str, Named]:
    """Returns what is kept of each name, [layers, …]: turns of a loop after one another, each with its layers."""
    found: dict[str, dict[Loop | None, list[Named]]] = {}
    for operation in recorder.operations:
        if (named := kept.get((operation.number, 0))) is not None:
            found.setdefault(operation.given_name or "", {}).setdefault(operation.loop, []).append(named)

    def rows(loop: Loop | None, each: list[Named]) -> Named:
        dims = len(loops(loop))
        return jax.tree.map(lambda *x: (s := jnp.stack(x, axis=dims)).reshape(-1, *s.shape[dims + 1 :]), *each)

    return {
        name: jax.tree.map(lambda *parts: jnp.concatenate(parts), *(rows(*each) for each in by_loop.items()))
        for name, by_loop in found.items()
    }


def _measured(placement: Placement) -> list[tuple[Array, NamedSharding]]:
    """Returns the floating-point arrays that are measured, each with its layout."""
    described, shardings = placement.task.state_arrays, placement.state_shardings
    gradients, updates = (
        jax.tree.map(
            lambda array, kind=kind, name=name: replace(array, names=(name(array.names[0]),), kind=kind),
            described.params,
        )
        for kind, name in (("gradient", gradient_name), ("update", update_name))
    )
    trees = described.params, gradients, updates, described.opt_state, described.variables
    layouts = shardings.params, shardings.params, shardings.params, shardings.opt_state, shardings.variables
    each = zip(jax.tree.leaves(trees), jax.tree.leaves(layouts), strict=True)
    return [(array, sharding) for array, sharding in each if jnp.issubdtype(array.dtype, jnp.floating)]


def update_name(parameter: str) -> str:
    return f"{UPDATE}{parameter}"


def _rows(array: Array, sharding: NamedSharding) -> int:
    """Returns the layers of a shard; 1 for an array that is not stacked."""
    return sharding.shard_shape(array.shape)[0] if array.is_stacked else 1


def _by_device(leaves: Sequence[jax.Array], arrays: Sequence[tuple[Array, NamedSharding]]) -> Sums:
    """Returns `Sums` [devices, rows]: each device reduces its own shards."""
    mesh = arrays[0][1].mesh

    def of_device(*shards: jax.Array) -> Sums:
        rows = [Sums.of(shard, array.is_stacked) for shard, (array, _) in zip(shards, arrays, strict=True)]
        return Sums(*(jnp.concatenate([*map(jnp.atleast_1d, each)])[None] for each in zip(*rows, strict=True)))

    specs, by_device = tuple(sharding.spec for _, sharding in arrays), PartitionSpec(mesh.axis_names)
    return jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=by_device, check_vma=False)(*leaves)


def _array(array: Array, sharding: NamedSharding, sums: Sums) -> ArrayNumbers:
    """Combines the sums [devices, rows] of an array's shards; of equal shards the first device's count."""
    ranges = shard_ranges(array.shape, sharding)
    first = {str(each): place for place, each in reversed([*enumerate(ranges.values())])}
    starts = [each[0][0] if array.is_stacked else 0 for each in ranges.values()]
    elements = math.prod(sharding.shard_shape(array.shape)[array.is_stacked :])
    layers, rows = array.shape[0] if array.is_stacked else 1, sums.max.shape[1]
    whole = Totals.zeros_of(layers)
    shards = Totals.of(sums, elements)
    for place in first.values():
        whole.add(slice(starts[place], starts[place] + rows), shards, place)
    rms = np.full((len(first), layers), np.nan)
    for index, place in enumerate(first.values()):
        rms[index, starts[place] : starts[place] + rows] = shards.rms[place]
    usual = np.nanquantile(rms, 0.5, axis=0, method="lower")
    found = [
        (float(ratio), ShardNumbers(device, [[layer, layer + 1], *box[1:]] if array.is_stacked else box, *values))
        for place, (device, box) in enumerate(ranges.items())
        for layer, ratio, values in _standing_out(shards, place, starts[place], usual)
    ]
    worst = [shard for _, shard in sorted(found, key=lambda each: -each[0])[:MOST_SHARDS]]
    return whole.numbers(array.names[0], array.kind, array.is_stacked, worst)


def shard_ranges(shape: Sequence[int], sharding: NamedSharding) -> dict[int, list[list[int]]]:
    """Returns the index ranges of each device's shard, by the device's id, in the order of the mesh."""
    return {
        device.id: [list(part.indices(size)[:2]) for part, size in zip(index, shape, strict=True)]
        for device, index in sharding.devices_indices_map(tuple(shape)).items()
    }


def _standing_out(
    shards: "Totals", place: int, start: int, usual: np.ndarray
) -> Iterator[tuple[int, float, tuple[float, float, int, float]]]:
    """Yields the layers in which a device's shard stands out, by what factor, and its numbers."""
    for row, (rms, largest, nonfinite) in enumerate(
        zip(shards.rms[place], shards.max[place], shards.nonfinite[place], strict=True)
    ):
        median = usual[start + row]
        ratio = max(rms / median, median / rms) if rms > 0 and median > 0 else 1.0
        if nonfinite or ratio >= STANDS_OUT:
            values = digits(rms), digits(largest), int(nonfinite), digits(median)
            yield start + row, math.inf if nonfinite else ratio, values


@dataclass
class Totals:
    """Sums of elements, float64 or int, of layers, or of devices and layers."""

    max: np.ndarray
    squares: np.ndarray
    total: np.ndarray
    zeros: np.ndarray
    nonfinite: np.ndarray
    elements: np.ndarray

    @classmethod
    def zeros_of(cls, layers: int) -> "Totals":
        return cls(*np.zeros((6, layers)))

    @classmethod
    def of(cls, sums: Sums, elements: int) -> "Totals":
        largest = np.asarray(sums.max, np.float64)
        squares, total = sums.squares * largest**2, sums.total * largest
        return cls(largest, squares, total, sums.zeros, sums.nonfinite, np.full(largest.shape, elements))

    def add(self, layers: slice, shards: "Totals", place: int) -> None:
        """Adds the layers of the shard at `place` in the mesh."""
        np.maximum(self.max[layers], shards.max[place], out=self.max[layers])
        for name in ("squares", "total", "zeros", "nonfinite", "elements"):
            getattr(self, name)[layers] += getattr(shards, name)[place]

    @property
    def rms(self) -> np.ndarray:
        return np.sqrt(self.squares / self._finite)

    @property
    def _finite(self) -> np.ndarray:
        return np.maximum(self.elements - self.nonfinite, 1)

    def numbers(self, name: str, kind: str, is_stacked: bool, shards: list[ShardNumbers]) -> ArrayNumbers:
        return ArrayNumbers(
            name=name,
            kind=kind,
            is_stacked=is_stacked,
            rms=[*map(digits, self.rms)],
            max=[*map(digits, self.max)],
            mean=[*map(digits, self.total / self._finite)],
            zeros=[*map(digits, self.zeros / self.elements)],
            nonfinite=[*map(int, self.nonfinite)],
            shards=shards,
        )


def _activation(name: str, sums: Sums, elements: int) -> ArrayNumbers:
    return Totals.of(sums, elements).numbers(name, "activation", len(sums.max) > 1, [])


def _experts(activations: Mapping[str, Named], sizes: Mapping[str, int], parts: int) -> ExpertNumbers:
    tokens = np.asarray(activations[ROUTED].tokens, np.float64)  # [layers, E]
    choices = tokens.sum(axis=1)
    sent = activations.get(SENT)
    kept = None if sent is None else sent.sums.total * np.float64(sent.sums.max)
    logits = activations[ROUTER_LOGITS].sums.max
    return ExpertNumbers(
        load=[[*map(digits, layer)] for layer in tokens * tokens.shape[1] / choices[:, None]],
        dropped=None if kept is None else [*map(digits, 1 - kept / choices)],
        logits_max=[*map(digits, logits)],
        device_parts=parts,
    )


def digits(value: float) -> float:
    """Returns a number with the digits that are right: all of a float32's would make the log longer."""
    return float(f"{value:.7g}")
