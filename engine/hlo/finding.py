"""A finding: something that is likely to be wrong with a preset. And the subject that checks examine."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import force_setattr

from ..wire.collective import CollectiveInfo
from ..wire.descriptions import ArrayInfo, MeshInfo
from ..wire.events import PresetCompiled, PresetInspected
from .layout import used_axes

RULES = {
    "S101": ("replicated-parameter", "a large parameter is replicated over an axis that splits others"),
    "S102": ("replicated-moment", "an optimizer moment is split over fewer devices than its parameter"),
    "S103": ("does-not-divide", "a dim cannot be split as its rule says"),
    "S104": ("idle-axis", "nothing is split over a mesh axis"),
    "S105": ("redundant-compute", "devices repeat each other's matrix products"),
    "S106": ("gathered-parameter", "a parameter is gathered for a product that could be reduced instead"),
    "S107": ("rematerialization", "the compiler replicates an array to reshard it"),
    "S108": ("other-layout", "the compiler chose another layout than intended"),
    "S109": ("traffic-over-compute", "an axis carries more bytes than compute can hide"),
    "S110": ("unnamed-dims", "the preset splits logical axes that no parameter has"),
    "S111": ("layers-over-dcn", "a tensor or sequence axis crosses TPU slices"),
    "S112": ("captured-array", "a program has large arrays as constants, which its function does not take"),
}
"""Code to (name, what it finds). The meaning of a code never changes."""
OF_PROGRAMS = "S112"
"""The code that is about programs alone, not about presets."""


class Finding(Struct, frozen=True):
    """One result of a check."""

    code: str
    """A key of `RULES`, such as `S101`."""
    message: str
    """The problem, with its numbers."""
    fix: str
    """The remedy."""
    arrays: list[str] = []
    """Names of the arrays that it is about."""
    bytes_per_device: int = 0
    """The cost per device: bytes of memory, or of traffic in a step, as the message says; 0 if it has neither."""
    source: str = ""
    """`file:line` of the operation; empty if unknown."""
    axes: list[str] = []
    """The mesh axes that it is about; empty if it is about none in particular."""
    dims: list[str] = []
    """The logical axes of `arrays` that it is about; empty if it is about none in particular."""
    name: str = ""
    """The name of the code in `RULES`, such as `replicated-parameter`."""

    def __post_init__(self) -> None:
        force_setattr(self, "name", RULES[self.code][0])


class Subject(Struct, frozen=True):
    """The description of one compiled preset, which the checks examine."""

    compiled: PresetCompiled
    inspected: PresetInspected | None
    """None if the preset was compiled but not inspected."""
    flops_per_step: float | None
    """FLOPs of a step on all devices; None if unknown."""

    @property
    def mesh(self) -> MeshInfo:
        return self.compiled.mesh

    @property
    def arrays(self) -> list[ArrayInfo]:
        """The arguments of the step, and with an inspection also gradients and activations."""
        return [*self.compiled.arrays, *(self.inspected.arrays if self.inspected else ())]

    @property
    def collectives(self) -> Sequence[CollectiveInfo]:
        """Collectives of the step; empty if the compiled text cannot be read."""
        return self.compiled.collectives or ()

    @property
    def wide_axes(self) -> dict[str, int]:
        return {axis: size for axis, size in self.mesh.axes.items() if size > 1}

    def of_kind(self, kind: str) -> list[ArrayInfo]:
        return [array for array in self.arrays if array.kind == kind]

    def axes_of(self, *kinds: str) -> set[str]:
        return {axis for kind in kinds for array in self.of_kind(kind) for axis in used_axes(array)}
