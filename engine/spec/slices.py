"""How a mesh lies over several slices: devices fill it slice by slice, so its first axes cross the slices."""

import math
from collections.abc import Mapping

from ..base import figures
from ..base.invalid import Invalid


def spans(mesh: Mapping[str, int], slices: int) -> dict[str, int]:
    """Returns for each mesh axis how many slices it spans: 1 inside one. Raises Invalid if the mesh does not fit.
    Devices fill a mesh slice after slice, the last axis fastest, whatever the preset. So the first axis is the
    outermost part of every slice boundary, and the slices must divide it, or it must divide them."""
    found: dict[str, int] = {}
    rest = slices
    for axis, size in mesh.items():
        if size % rest and rest % size:
            raise Invalid(
                f"mesh {figures.axes(dict(mesh))} cannot be laid over {slices} slices: {axis} ({size}) and {rest} "
                f"slices do not divide each other: make the first axis a multiple of {slices}"
            )
        found[axis] = math.gcd(size, rest)
        rest //= found[axis]
    return found


def within(mesh: Mapping[str, int], slices: int) -> dict[str, int]:
    """Returns the part of a mesh in one slice: axis to size. Raises Invalid as `spans` does."""
    return {axis: mesh[axis] // span for axis, span in spans(mesh, slices).items()}


def crossing(mesh: Mapping[str, int], slices: int) -> list[str]:
    """Returns the mesh axes that cross slices. Raises Invalid as `spans` does."""
    return [axis for axis, span in spans(mesh, slices).items() if span > 1]
