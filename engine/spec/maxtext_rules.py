"""Presets from MaxText's configuration files, and back: their `mesh_axes`, sizes and `logical_axis_rules`."""

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct

from ..base.untrusted import read_bytes, refusing
from ..base.user_error import UserError, refuse
from .preset import OF_SOME_PARAMETERS, REST, SPLIT_ONCE, Axes, Preset
from .preset_files import MAX_FILE_BYTES, wrong_value

OUR_NAMES = {
    "activation_batch": "batch",
    "activation_length": "seq",
    "activation_kv_length": "keys",
    "activation_embed": "activation_embed",
    "embed": "embed",
    "embed_attn": "embed_attn",
    "embed_moe": "embed_moe",
    "embed_router": "embed_router",
    "embed_vocab": "embed_vocab",
    "qkv": "qkv",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "kv": "head_dim",
    "mlp": "mlp",
    "mlp_moe": "mlp_moe",
    "exp": "experts",
    "vocab": "vocab",
    "layers": "layers",
}
"""MaxText's logical axes (`configs/base.yml`) by their name here."""
LIKE = {"kv_heads": "heads", **{name: logical for name, (logical, _) in OF_SOME_PARAMETERS.items()}}
"""Logical axes that are split like another one, unless there is a rule for them: here, and in the files of MaxText that
do not have them yet."""
SAME_HERE = {
    "q_heads": "heads",
    "kv_head_dim": "kv",
    "norm": "embed",
    "activation_batch_attn": "activation_batch",
    "activation_batch_moe": "activation_batch",
    "activation_kv_batch": "activation_batch",
    "activation_embed_and_logits_batch": "activation_batch",
    "activation_input_length_attn": "activation_length",
    "activation_length_attn": "activation_length",
    "activation_length_moe": "activation_length",
    "activation_norm_length": "activation_length",
    "activation_norm_length_moe": "activation_length",
    "activation_q_length": "activation_length",
    "activation_embed_attn": "activation_embed",
    "activation_embed_moe": "activation_embed",
    "activation_heads": "heads",
    "activation_kv_heads": "kv_heads",
    "activation_kv": "kv",
    "activation_kv_head_dim": "kv",
    "activation_mlp": "mlp",
    "activation_mlp_moe": "mlp_moe",
    "activation_exp": "exp",
    "activation_stage": "layers",
    "activation_vocab": "vocab",
}
"""MaxText's other logical axes of what the built-in models have: here each is split like one of `OUR_NAMES`."""
PARAMETERS_SAME_HERE = ("q_heads", "kv_head_dim")
"""Those of kernels: a file in which they differ is refused."""
MAX_DEPTH = 50
"""Lists within each other in a file: rules need three."""
SIZE_NAMES = {"stage": "pipeline"}
"""Axes whose size has another name in MaxText: `ici_pipeline_parallelism` for `stage`."""
PARAMETERS = (
    {"layers", "embed", "embed_attn", "qkv", "heads", "kv_heads", "head_dim"},
    {"layers", "experts", "embed", "embed_moe", "mlp", "mlp_moe"},
    {"layers", "embed", "embed_router"},
    {"vocab", "embed", "embed_vocab"},
)
"""Logical axes that parameters have together. In MaxText, dims of activations may stay unsharded."""


class MaxTextFile(Struct, frozen=True):
    mesh_axes: list[str]
    logical_axis_rules: list[tuple[str, str | list[str] | None]]


class Imported(NamedTuple):
    """A preset made from a file."""

    preset: Preset
    left_out: list[str]
    """Logical axes of parts that no built-in model has."""
    differing: list[str]
    """Logical axes that are split otherwise here: like which other one."""
    unused_axes: list[str]
    """Mesh axes of size 1."""


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
    differing = _differing(file, mesh)
    if refused := [
        f"{path}: {name} is split otherwise than {differing[name]}: give both the same axes"
        for name in (PARAMETERS_SAME_HERE)
        if name in differing
    ]:
        raise UserError(*refused)
    preset = Preset(name, f"The rules of {path.name}, which MaxText reads", "", mesh, tried, {}, "")
    left_out = dict.fromkeys(name for name, _ in file.logical_axis_rules if name not in OUR_NAMES | SAME_HERE)
    unused = [axis for axis in file.mesh_axes if axis not in mesh]
    return Imported(preset, list(left_out), [f"{name} like {other}" for name, other in differing.items()], unused)


def maxtext_text(preset: Preset) -> str:
    """Returns the lines of a MaxText configuration file for a preset. Raises UserError if MaxText has no such rule."""
    theirs = {ours: name for name, ours in OUR_NAMES.items()}
    tried = {theirs[logical]: splits for logical, splits in preset.rules.items() if logical in theirs}
    problems = [
        f"{preset.name}: [rules] {logical}: MaxText has no such logical axis: remove the rule"
        for logical in preset.rules
        if logical not in theirs
    ]
    if preset.overrides:
        problems.append(f"{preset.name}: [overrides]: MaxText's rules are by logical axis only: remove them")
    refuse(problems)
    sizes = [f"ici_{SIZE_NAMES.get(axis, axis)}_parallelism: {size}\n" for axis, size in preset.mesh.items()]
    for name, other in (LIKE | SAME_HERE).items():  # MaxText would take the rules of its `base.yml`
        if other in tried:
            tried.setdefault(name, tried[other])
    rules = [f"  {json.dumps([name, list(axes)])},\n" for name, each in tried.items() for axes in each]
    return f"mesh_axes: {json.dumps(list(preset.mesh))}\nlogical_axis_rules: [\n{''.join(rules)}]\n{''.join(sizes)}"


def _differing(file: MaxTextFile, mesh: Mapping[str, int]) -> dict[str, str]:
    """Returns the logical axes that the file splits otherwise than the one that they are split like here."""
    found = _of_file(file, mesh)

    def rule(name: str) -> list[Axes]:
        return found.get(name) or (rule(LIKE[name]) if name in LIKE else [()])

    return {name: other for name, other in SAME_HERE.items() if name in found and found[name][0] != rule(other)[0]}


def _of_file(file: MaxTextFile, mesh: Mapping[str, int]) -> dict[str, list[Axes]]:
    """Returns the splits that a file tries for each of its logical axes, over mesh axes of more than one device."""
    found: dict[str, list[Axes]] = {}
    for name, value in file.logical_axis_rules:
        axes = tuple(axis for axis in ([value] if isinstance(value, str) else value or ()) if axis in mesh)
        found.setdefault(name, []).append(axes)
    return found


def _tried(file: MaxTextFile, mesh: Mapping[str, int]) -> dict[str, tuple[Axes, ...]]:
    """Returns the splits that are tried for each logical axis. In MaxText a dim that none fits is unsharded."""
    found = {OUR_NAMES[name]: each for name, each in _of_file(file, mesh).items() if name in OUR_NAMES}
    once = {logical: each[:1] for logical, each in found.items() if logical in SPLIT_ONCE}
    tried = {logical: tuple(dict.fromkeys(each)) for logical, each in (found | once).items()}
    needed = {logical: each for logical, each in tried.items() if each != tried.get(LIKE.get(logical, ""), ((),))}
    return {
        logical: tuple(dict.fromkeys((*each, ()))) if _may_be_unsharded(logical, needed) else each
        for logical, each in needed.items()
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
