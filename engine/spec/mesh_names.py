"""Presets that are named by their mesh, such as `fsdp4-model2`: a family of rules for each mesh axis."""

import re

from .preset import BUILT_IN, Axes, Preset

MESH_NAME = re.compile(
    r"(?P<mesh>[a-z]+\d{1,6}(?:-[a-z]+\d{1,6})*)(?P<unsharded>(?:-whole\.[a-z_]+)*)"
    r"(?:-microbatches\.(?P<microbatches>[1-9]\d{0,5}))?"
)

MESH_RULES: dict[str, dict[str, Axes]] = {
    "data": {"batch": ("data",)},
    "fsdp": {"batch": ("fsdp",), "embed": ("fsdp",)},
    "expert": {"batch": ("expert",), "experts": ("expert",)},
    "seq": {"seq": ("seq",)},
    "model": {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)},
    "pipeline": {"layers": ("pipeline",), "vocab": ("pipeline",)},
}
"""The logical axes that each mesh axis splits in a preset named by its mesh, as in the built-in presets."""


def mesh_preset(name: str) -> Preset | None:
    """Generates the preset that a name such as `data2-fsdp4-model2-whole.vocab` describes; None for any other name. It
    lists mesh axes with sizes, in the order of the mesh, then dims left unsharded although `model` or `pipeline` would
    split them, then the micro-batches of a pipeline: `data4-pipeline2-microbatches.8`."""
    found = MESH_NAME.fullmatch(name)
    if found is None:
        return None
    sizes = re.findall(r"([a-z]+)(\d+)", found["mesh"])
    mesh = {axis: int(size) for axis, size in sizes}
    unsharded = found["unsharded"].split("-whole.")[1:]
    if not set(mesh) <= set(MESH_RULES) or not set(unsharded) <= set(MESH_RULES["model"]) or len(mesh) < len(sizes):
        return None
    if min(mesh.values()) < 1 or (found["microbatches"] and "pipeline" not in mesh):
        return None
    rules = {logical: axes for logical, axes in _rules(mesh).items() if logical not in unsharded}
    microbatches = int(found["microbatches"]) if found["microbatches"] else None
    return Preset(name, "named by its mesh", "", mesh, rules, {}, BUILT_IN, microbatches=microbatches)


def _rules(mesh: dict[str, int]) -> dict[str, Axes]:
    rules: dict[str, Axes] = {}
    for axis in (axis for axis in MESH_RULES if axis in mesh):
        for logical, axes in MESH_RULES[axis].items():
            rules[logical] = (*rules.get(logical, ()), *axes)
    if {"fsdp", "seq"} <= mesh.keys():  # as `sp2`: devices that share a sequence need not repeat its parameters
        rules["embed"] = ("fsdp", "seq")
    return rules
