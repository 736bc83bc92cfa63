"""Presets from MaxText's configuration files, and back: their `mesh_axes`, sizes and `logical_axis_rules`."""

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct

from ..base.untrusted import read_bytes, refusing
from ..base.user_error import UserError
from .preset import REST, SPLIT_ONCE, Axes, Preset
from .preset_files import MAX_FILE_BYTES, wrong_value

OUR_NAMES = {
    "activation_batch": "batch",
    "activation_length": "seq",
    "activation_kv_length": "keys",
    "activation_embed": "activation_embed",
    "embed": "embed",
    "qkv": "qkv",
    "heads": "heads",
    "kv": "head_dim",
    "mlp": "mlp",
    "exp": "experts",
    "vocab": "vocab",
    "layers": "layers",
}
"""MaxText's logical axes by their name here; it has others, for parts that the built-in models lack."""
MAX_DEPTH = 50
"""Lists within each other in a file: rules need three."""
SIZE_NAMES = {"stage": "pipeline"}
"""Axes whose size has another name in MaxText: `ici_pipeline_parallelism` for `stage`."""
PARAMETERS = (
    {"layers", "embed", "qkv", "heads", "head_dim"},
    {"layers", "experts", "embed", "mlp"},
    {"vocab", "embed"},
)
"""Logical axes that parameters have together. In MaxText, dims of activations may stay unsharded."""


class MaxTextFile(Struct, frozen=True):
    mesh_axes: list[str]
    logical_axis_rules: list[tuple[str, str | list[str] | None]]


class Imported(NamedTuple):
    """A preset made from a file, the logical axes without a counterpart here, and mesh axes of size 1."""

    preset: Preset
    left_out: list[str]
    unused_axes: list[str]


def read_maxtext(path: Path, name: str, sizes: Mapping[str, int]) -> Imported:
    """Reads a preset from a YAML file; `sizes` replace the file's sizes of mesh axes. Raises UserError."""
    tables = _read_yaml(path)
    try:
        file = msgspec.convert(tables, MaxTextFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {wrong_value(error, MaxTextFile)}") from error
    if not file.mesh_axes:
        raise UserError(f"{path}: mesh_axes is empty: name an axis")
    if unknown := [axis for axis in sizes if axis not in file.mesh_axes]:
        raise UserError(f"--mesh {unknown[0]}: not an axis of {path}: choose from {', '.join(file.mesh_axes)}")
    all_sizes = {axis: sizes.get(axis, _size(path, tables, axis)) for axis in file.mesh_axes}
    default = "fsdp" if "fsdp" in file.mesh_axes else file.mesh_axes[0]  # MaxText reads the file on its `base.yml`
    mesh = {axis: size for axis, size in all_sizes.items() if size != 1} or {default: REST}
    tried = _tried(file, mesh)
    preset = Preset(
        name,
        f"The rules of {path.name}, which MaxText reads",
        "",
        mesh,
        {logical: each[0] for logical, each in tried.items()},
        {},
        "",
        alternatives={logical: each[1:] for logical, each in tried.items() if len(each) > 1},
    )
    left_out = dict.fromkeys(logical for logical, _ in file.logical_axis_rules if logical not in OUR_NAMES)
    return Imported(preset, list(left_out), [axis for axis in file.mesh_axes if axis not in mesh])


def maxtext_text(preset: Preset) -> str:
    """Returns the lines of a MaxText configuration file for a preset. Raises UserError if MaxText has no such rule."""
    theirs = {ours: name for name, ours in OUR_NAMES.items()}
    problems = [
        f"{preset.name}: [rules] {logical}: MaxText has no such logical axis: remove the rule"
        for logical in preset.rules
        if logical not in theirs
    ]
    if preset.overrides:
        problems.append(f"{preset.name}: [overrides]: MaxText's rules are by logical axis only: remove them")
    if problems:
        raise UserError(*problems)
    sizes = [f"ici_{SIZE_NAMES.get(axis, axis)}_parallelism: {size}\n" for axis, size in preset.mesh.items()]
    rules = [
        f"  {json.dumps([theirs[logical], list(axes)])},\n"
        for logical, first in preset.rules.items()
        for axes in (first, *preset.alternatives.get(logical, ()))
    ]
    return f"mesh_axes: {json.dumps(list(preset.mesh))}\nlogical_axis_rules: [\n{''.join(rules)}]\n{''.join(sizes)}"


def _tried(file: MaxTextFile, mesh: Mapping[str, int]) -> dict[str, tuple[Axes, ...]]:
    """Returns the splits that are tried for each logical axis. In MaxText a dim that none fits is unsharded."""
    found: dict[str, list[Axes]] = {}
    for logical, value in file.logical_axis_rules:
        if ours := OUR_NAMES.get(logical):
            axes = tuple(axis for axis in ([value] if isinstance(value, str) else value or ()) if axis in mesh)
            found.setdefault(ours, []).append(axes)
    once = {logical: each[:1] for logical, each in found.items() if logical in SPLIT_ONCE}
    tried = {logical: tuple(dict.fromkeys(each)) for logical, each in (found | once).items()}
    return {
        logical: tuple(dict.fromkeys((*each, ()))) if _may_be_unsharded(logical, tried) else each
        for logical, each in tried.items()
        if each != ((),)
    }


def _may_be_unsharded(logical: str, tried: Mapping[str, tuple[Axes, ...]]) -> bool:
    if logical in SPLIT_ONCE or len(tried[logical]) > 1:
        return logical not in SPLIT_ONCE
    own = {axis for axes in tried[logical] for axis in axes}
    near = {name for together in PARAMETERS if logical in together for name in together} - {logical}
    others = {axis for name in near for axes in tried.get(name, ()) for axis in axes}
    return bool(own & others)


def _size(path: Path, tables: dict[str, Any], axis: str) -> int:
    """The devices along an axis on one slice: of -1 slices, which are those there are, there is one."""
    name = SIZE_NAMES.get(axis, axis)
    inside, between = (tables.get(f"{network}_{name}_parallelism", 1) for network in ("ici", "dcn"))
    if not isinstance(inside, int) or not isinstance(between, int):
        raise UserError(f"{path}: ici_{name}_parallelism and dcn_{name}_parallelism must be whole numbers")
    return REST if inside == REST else inside * (1 if between == REST else between)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # flax and orbax bring it

    text = read_bytes(path, MAX_FILE_BYTES)
    if max(accumulate((each in b"[{") - (each in b"]}") for each in text), default=0) > MAX_DEPTH:
        raise UserError(f"{path}: not valid YAML: nested too deeply")  # PyYAML takes seconds to notice
    with refusing(str(path), "not valid YAML"):
        tables = yaml.safe_load(text)
    if not isinstance(tables, dict):
        raise UserError(f"{path}: no mesh_axes and logical_axis_rules: give a configuration file of MaxText's")
    return cast(dict[str, Any], tables)
