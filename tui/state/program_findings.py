"""Likely mistakes in a user's program, from its explanation alone. Codes are lint's."""

import math
import re
from collections.abc import Iterator

from ...engine.base import formatting
from ...engine.explain.explanation import Explanation, Rematerialization, ValueOrigin
from ...engine.explain.graph import Graph, bytes_of
from ...engine.hlo.finding import Finding
from ...engine.hlo.lint import LARGE_BYTES, LARGE_FRACTION

MANY_CAPTURED = 2**16
"""Bytes of captured arrays for S112 to report them."""


def program_findings(found: Explanation) -> list[Finding]:
    """Returns the findings in the order of their codes. Rematerializations are known only if it was compiled."""
    rematerialized = found.compiled.rematerializations if found.compiled else []
    return [*_replicated(found), *_idle_axes(found), *map(_rematerialization, rematerialized), *_captured(found)]


def _arguments(found: Explanation) -> list[ValueOrigin]:
    return [value for value in found.values if value.role == "argument"]


def _replicated(found: Explanation) -> Iterator[Finding]:
    """Large parts of one argument, as of `params`, that an axis does not split although it splits others of them."""
    trees: dict[str, list[ValueOrigin]] = {}
    for value in _arguments(found):
        trees.setdefault(re.split(r"[.\[]", value.name)[0], []).append(value)
    for tree in trees.values():
        held = sum(_bytes(value, found.mesh) for value in tree)
        for axis, size in found.mesh.items():
            if size > 1 and any(axis in _axes(value) for value in tree):
                for value in tree:
                    saved = _bytes(value, found.mesh) * (size - 1) // size
                    if axis not in _axes(value) and saved >= max(LARGE_BYTES, LARGE_FRACTION * held):
                        yield from _replicated_value(value, axis, saved, found.mesh)


def _replicated_value(value: ValueOrigin, axis: str, saved: int, mesh: dict[str, int]) -> Iterator[Finding]:
    lengths = [length // Graph(mesh).parts(axes) for length, axes in zip(value.shape, value.axes, strict=True)]
    dim = max(range(len(lengths)), key=lengths.__getitem__)
    if lengths[dim] % mesh[axis] == 0:
        message = (
            f"{value.name} is replicated over the {mesh[axis]} devices of {axis}, which splits other parts of that "
            f"argument: {formatting.size(saved)} of its {formatting.size(_bytes(value, mesh))}"
            " on each device could be saved"
        )
        yield Finding("S101", message, f"split its dim {dim} over {axis}", [value.name], saved, axes=[axis])


def _idle_axes(found: Explanation) -> Iterator[Finding]:
    used = {axis for value in found.values for axis in _axes(value)}
    whole = [value.name for value in _arguments(found) if not _axes(value)]
    for axis, size in found.mesh.items():
        if size > 1 and axis not in used:
            yield Finding(
                "S104",
                f"nothing is split over {axis}: its {size} devices hold and compute the same",
                f"split an argument over it, the batch first, or give its {size} devices to another axis",
                whole,
                axes=[axis],
            )


def _rematerialization(found: Rematerialization) -> Finding:
    return Finding(
        "S107",
        f"{found.value} is replicated to get from {formatting.layout(found.before, device=found.device)} to "
        f"{formatting.spec(found.after)}",
        "add a sharding constraint with one layout on both sides of that operation, or change the layout of one side",
        [found.value],
        source=found.source,
    )


def _captured(found: Explanation) -> Iterator[Finding]:
    arrays = [value for value in found.values if value.role == "captured"]
    held = sum(_bytes(value, found.mesh) for value in arrays)
    if held >= MANY_CAPTURED:
        names = formatting.listed([value.name for value in arrays], 3)
        yield Finding(
            "S112",
            f"{names}: captured by the function, so constants of the program: {formatting.size(held)} whole on every "
            "device, which are in no figure of its arguments or temporaries",
            "pass them as arguments, with shardings",
            [value.name for value in arrays],
            held,
            arrays[0].source,
        )


def _axes(value: ValueOrigin) -> set[str]:
    return {axis.partition(":")[0] for axes in value.axes for axis in axes}


def _bytes(value: ValueOrigin, mesh: dict[str, int]) -> int:
    parts = math.prod(Graph(mesh).parts(axes) for axes in value.axes)
    return math.prod(value.shape) * bytes_of(value.dtype) // parts
