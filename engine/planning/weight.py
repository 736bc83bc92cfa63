"""A parameter of the built-in model, as a preset splits it."""

from dataclasses import dataclass
from functools import cached_property

from ..models.task import Array
from ..parallel.rules import Decision
from ..spec.preset import Axes

Spec = tuple[Axes, ...]
"""The mesh axes that split each dim of an array."""


@dataclass(frozen=True)
class Weight:
    """A parameter of the model and its layout."""

    array: Array
    spec: Spec
    moments: tuple[Spec, ...]
    """The specs of its optimizer moments."""

    @property
    def name(self) -> str:
        """Its path, such as `blocks.mlp.up.kernel`."""
        return self.array.names[0]

    @cached_property
    def axes(self) -> set[str]:
        """The mesh axes that split it."""
        return axes_of(self.spec)

    @property
    def is_stacked(self) -> bool:
        """Whether its first dim is the layers."""
        return self.array.logical_axes[:1] == ("layers",)

    @property
    def layers(self) -> int:
        """Layers that it holds: 1 if it is not stacked."""
        return self.array.shape[0] if self.is_stacked else 1

    @property
    def is_table(self) -> bool:
        """Whether it is an embedding table, of tokens or positions."""
        return self.array.logical_axes[0] in ("vocab", "positions")

    @property
    def is_kernel(self) -> bool:
        """Whether it is the kernel of a dense layer."""
        return self.name.endswith(".kernel")

    @property
    def product(self) -> str:
        """The name of its product in `remat.KEPT`; empty if it has none."""
        layer = self.name.split(".")[-2] if self.is_kernel else ""
        names = {"qkv": "qkv_proj", "query": "qkv_proj", "kv": "qkv_proj", "up": "mlpwi", "gate": "mlpwi"}
        return {**names, "out": "out_proj", "down": "mlpwo"}.get(layer, "")

    @property
    def is_attention_input(self) -> bool:
        """Whether it is the kernel of queries, keys or values."""
        return self.is_kernel and self.name.split(".")[-2] in ("qkv", "query", "kv")


def spec_of(decision: Decision) -> Spec:
    """Returns the mesh axes that split each dim of an array."""
    return tuple(dim.axes for dim in decision.dims)


def axes_of(spec: Spec) -> set[str]:
    """Returns all mesh axes that split an array."""
    return {axis for axes in spec for axis in axes}
