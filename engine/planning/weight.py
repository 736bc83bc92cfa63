"""How a preset splits arrays over its mesh: the parameters of the built-in model, and activations."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax

from ..models.task import Array, TrainState
from ..parallel.rules import Decision, LogicalAxes, by_rules
from ..spec.preset import Axes

Spec = tuple[Axes, ...]
"""The mesh axes that split each dim of an array."""
TENSOR_PARALLEL = ("heads", "kv_heads", "mlp", "vocab")


@dataclass(frozen=True)
class Weight:
    array: Array
    spec: Spec
    moments: tuple[Spec, ...]

    @property
    def name(self) -> str:
        """Its path, such as `blocks.mlp.up.kernel`."""
        return self.array.names[0]

    @cached_property
    def axes(self) -> set[str]:
        return axes_of(self.spec)

    @property
    def is_stacked(self) -> bool:
        return self.array.logical_axes[:1] == ("layers",)

    @property
    def layers(self) -> int:
        """Layers that it holds: 1 if it is not stacked."""
        return self.array.shape[0] if self.is_stacked else 1

    @property
    def is_table(self) -> bool:
        return self.array.logical_axes[0] in ("vocab", "positions")

    @property
    def is_kernel(self) -> bool:
        return self.name.endswith(".kernel")

    @property
    def is_attention_input(self) -> bool:
        return self.is_kernel and self.name.split(".")[-2] in ("qkv", "query", "kv")


def split_axes(axes: Axes, mesh: Mapping[str, int]) -> Axes:
    """Leaves out axes of size 1, which split nothing."""
    return tuple(axis for axis in axes if mesh.get(axis, 1) > 1)


def spec_of(decision: Decision, mesh: Mapping[str, int]) -> Spec:
    return tuple(split_axes(dim.axes, mesh) for dim in decision.dims)


def axes_of(spec: Spec) -> set[str]:
    return {axis for axes in spec for axis in axes}


def weights_of(arrays: TrainState, decisions: TrainState, mesh: Mapping[str, int]) -> list[Weight]:
    moments: dict[str, list[Spec]] = {}
    for array, decision in zip(*map(jax.tree.leaves, (arrays, decisions)), strict=True):
        if array.kind == "moment":
            for owner in array.names[1:]:  # Adafactor's rows and columns name none
                moments.setdefault(owner, []).append(spec_of(decision, mesh))
    parameters = zip(*map(jax.tree.leaves, (arrays.params, decisions.params)), strict=True)
    return [Weight(array, spec_of(each, mesh), tuple(moments.get(array.names[0], ()))) for array, each in parameters]


class Shards:
    """How rules split arrays over a mesh. Rules and specs name no axes of size 1."""

    def __init__(self, rules: Mapping[str, Axes], mesh: Mapping[str, int]) -> None:
        self.rules = {logical: split_axes(axes, mesh) for logical, axes in rules.items()}
        self.mesh = mesh
        self.batch_axes, self.seq_axes = self.rules.get("batch", ()), self.rules.get("seq", ())
        self._specs: dict[object, Spec] = {}
        self._elements: dict[object, int] = {}

    def spec_of(self, shape: tuple[int, ...], logical: LogicalAxes) -> Spec:
        if (shape, logical) not in self._specs:
            self._specs[shape, logical] = spec_of(by_rules(shape, logical, self.rules, self.mesh), self.mesh)
        return self._specs[shape, logical]

    def tensor_axes(self, logical: str) -> Axes:
        """Returns the axes that split this dim of an activation; none if batch or sequence already use one of them."""
        if logical not in TENSOR_PARALLEL:
            return ()
        axes = self.rules.get(logical, ())
        return axes if not set(axes) & {*self.batch_axes, *self.seq_axes} else ()

    def is_slice(self, axes: Iterable[str]) -> bool:
        return self.shard_count(axes) == self.shard_count(self.mesh)

    def shard_count(self, axes: Iterable[str]) -> int:
        count = 1
        for axis in axes:  # called some hundred times per estimate: a generator would double its time
            count *= self.mesh[axis]
        return count

    def local_elements(self, shape: tuple[int, ...], spec: Spec) -> int:
        """Returns the elements of an array's largest shard."""
        if (shape, spec) not in self._elements:
            parts = (-(-size // self.shard_count(axes)) for size, axes in zip(shape, spec, strict=True))
            self._elements[shape, spec] = math.prod(parts)
        return self._elements[shape, spec]
