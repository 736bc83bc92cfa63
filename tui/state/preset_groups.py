"""Presets by kind of parallelism, in the order in which they are listed."""

from collections.abc import Sequence

from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.descriptions import PresetInfo

BY_AXIS = {
    "pipeline": "pipeline",
    "expert": "experts",
    "seq": "sequence",
    "fsdp": "fully sharded",
    "model": "tensor",
}
"""Group by mesh axis; the first that a preset has decides."""
DATA, PITFALLS, YOURS, UNFIT = "data", "pitfalls", "yours", "do not fit"
ORDER = (DATA, "tensor", "fully sharded", "pipeline", "sequence", "experts", YOURS, PITFALLS, UNFIT)


def grouped(presets: Sequence[PresetInfo]) -> dict[str, list[PresetInfo]]:
    """Returns the presets of each group that has any, in the order of the groups."""
    found = {name: [info for info in presets if group_of(info) == name] for name in ORDER}
    return {name: infos for name, infos in found.items() if infos}


def group_of(info: PresetInfo) -> str:
    """Returns the group of a preset: its most particular mesh axis, its source, or that it does not fit."""
    if not info.fits:
        return UNFIT
    if is_pitfall(info.name):
        return PITFALLS
    if info.source != "built-in":
        return YOURS
    split = [axis for axis in BY_AXIS if info.mesh.get(axis, 1) > 1 or (axis == "fsdp" and axis in info.mesh)]
    return BY_AXIS[split[0]] if split else DATA
