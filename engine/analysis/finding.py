"""One thing that is likely to be wrong with a preset, and what a check looks at to find it."""

from collections.abc import Sequence

from msgspec import Struct

from ..wire.descriptions import ArrayInfo, CollectiveInfo, MeshInfo, ProductInfo
from ..wire.events import PresetInspected
from .layout import used_axes

RULES = {
    "S101": ("replicated-parameter", "a large parameter stands whole on an axis that splits the others"),
    "S102": ("replicated-moment", "an optimizer moment is split less than its parameter"),
    "S103": ("does-not-divide", "a dim could not be split as its rule says"),
    "S104": ("idle-axis", "nothing is split over a mesh axis"),
    "S105": ("redundant-compute", "devices repeat each other's matrix products"),
    "S106": ("gathered-parameter", "a parameter is gathered whole where a reduction would do"),
    "S107": ("rematerialization", "the compiler replicates an array to re-split it"),
    "S108": ("other-layout", "the compiler laid an array out otherwise than intended"),
    "S109": ("traffic-over-compute", "an axis carries more bytes than the compute can hide"),
    "S110": ("unnamed-dims", "the preset splits dims that no parameter has"),
}
"""Code to (name, what it finds). Codes never change their meaning."""


class Finding(Struct, frozen=True, kw_only=True):
    code: str
    name: str
    message: str
    """What is wrong, with the numbers."""
    fix: str
    arrays: list[str] = []
    bytes_per_device: int = 0
    """What it costs a device, in memory or in traffic of a step, as the message says; 0 where it is neither."""
    source: str = ""


class Subject(Struct, frozen=True):
    """One preset's description, as the checks look at it."""

    mesh: MeshInfo
    arguments: Sequence[ArrayInfo]
    inner: Sequence[ArrayInfo]
    """Gradients and activations."""
    collectives: Sequence[CollectiveInfo]
    products: Sequence[ProductInfo]
    inspected: PresetInspected | None
    idle_rules: Sequence[str]
    flops_per_device: float | None

    def of_kind(self, kind: str) -> list[ArrayInfo]:
        return [array for array in (*self.arguments, *self.inner) if array.kind == kind]

    def axes_of(self, *kinds: str) -> set[str]:
        return {axis for kind in kinds for array in self.of_kind(kind) for axis in used_axes(array)}

    @property
    def wide_axes(self) -> dict[str, int]:
        return {axis: size for axis, size in self.mesh.axes.items() if size > 1}


def finding(
    code: str, message: str, fix: str, arrays: Sequence[ArrayInfo] = (), cost: int = 0, source: str = ""
) -> Finding:
    return Finding(
        code=code,
        name=RULES[code][0],
        message=message,
        fix=fix,
        arrays=[array.name for array in arrays],
        bytes_per_device=cost,
        source=source,
    )
