"""Finds tensor and sequence axes that cross TPU slices: every layer then waits for the data center network."""

from collections.abc import Iterator, Mapping

from ..base import figures
from .finding import Finding, finding

PARALLELISM = {
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "seq": "sequence",
    "keys": "sequence",
}
"""Logical axis to the parallelism of a mesh axis that splits it. Its collectives are in every layer, before the next
operation can begin; those of a batch axis are of the gradients, once per step."""


def over_dcn(split: Mapping[str, set[str]], moved: Mapping[str, int]) -> Iterator[Finding]:
    """Yields a finding for each tensor or sequence axis that crosses slices.

    `split`: mesh axis to the logical axes that it splits. `moved`: each mesh axis that crosses slices, to the bytes per
    device and step of its collectives on DCN; 0 if unknown.
    """
    for axis, size in moved.items():
        dims = sorted(split.get(axis, set()) & PARALLELISM.keys())
        if not dims or {"batch", "layers"} & split[axis]:  # pipeline stages may split the vocabulary, too
            continue
        traffic = f", {figures.size(size)} per device and step" if size else ""
        yield finding(
            "S111",
            f"{axis} is a {PARALLELISM[dims[0]]} axis ({', '.join(dims)}) and crosses slices: every layer waits for "
            f"DCN{traffic}",
            f"put another axis first in [mesh], such as data, a multiple of the slices: then {axis} stays inside one",
            cost=size,
            axes=[axis],
            dims=dims,
        )
