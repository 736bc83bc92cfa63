"""Reads parallelism presets: by name, from a file, or from a mesh name such as `fsdp4-model2`."""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..base.directories import expanded
from ..base.untrusted import read_text, refusing
from ..base.user_error import UserError, noting, suggestion
from .preset import AXIS_NAME, BUILT_IN, LOGICAL_AXES, NO_STAGES, REST, SPLIT_ONCE, Axes, AxisTypes, Override, Preset
from .preset_files import FILE_NAME, MAX_FILE_BYTES, PRESETS, misnamed_files, parse_toml, preset_files, wrong_value

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
BAD_NAME = "invalid file name: a preset's name has 1 to 64 letters, digits, '.', '_' and '-': rename the file"
MAX_AXES, LARGEST_AXIS = 16, 10**6
MOST_MICROBATCHES = MOST_REPEATS = 10**6
AxisName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{AXIS_NAME.pattern}$"})]
AxisSize = Annotated[int, Meta(extra_json_schema={"minimum": REST, "maximum": LARGEST_AXIS, "not": {"const": 0}})]
Mesh = Annotated[dict[AxisName, AxisSize], Meta(extra_json_schema={"minProperties": 1, "maxProperties": MAX_AXES})]
"""The limits are here for editors; `_mesh_problems` checks them again, to report them with all other problems."""
Dim = str | list[str]
"""The mesh axes that a dim is split over, as written in a file: one, several, or none (an empty string or list)."""


RuleValue = str | list[str | list[str]]
"""A rule as written in a file: as `Dim`, or a list of alternatives, each a list."""


def _rule_schemas() -> dict[str, Any]:
    rule = msgspec.json.schema(RuleValue)
    return {name: {"description": text.capitalize()} | rule for name, text in LOGICAL_AXES.items()}


class OverrideTable(Struct, frozen=True, forbid_unknown_fields=True):
    """An override in its long form, `{ spec = […], min_size = N }`: a layout for arrays that are large enough."""

    spec: list[Dim]
    """For each dim of one layer's array the mesh axes that split it, major first; "" for an unsharded dim. Dims that
    are left out at the end are unsharded."""
    min_size: int = 0
    """Arrays with fewer elements in one layer are replicated instead."""


OverrideValue = list[Dim] | OverrideTable


class PresetFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A parallelism preset: a mesh, and rules from the model's logical axes to mesh axes."""

    mesh: Mesh
    """Axis to size, in the order in which devices fill them; -1, for one axis at most, means the remaining devices."""
    summary: str = ""
    """One line about the preset, for lists."""
    teaches: str = ""
    """The lesson of the preset, shown next to it."""
    microbatches: Annotated[int, Meta(ge=1, le=MOST_MICROBATCHES)] | None = None
    """Micro-batches into which a pipeline splits the batch of a device; only with a rule for `layers`. Default: as many
    as divide that batch, at most four per stage."""
    pipeline_repeats: Annotated[int, Meta(ge=1, le=MOST_REPEATS)] = 1
    """How many times each micro-batch passes through all stages of a pipeline; only with a rule for `layers`. More than
    1 interleaves the stages, which makes the bubble smaller: each has that many chunks of consecutive blocks."""
    axis_types: AxisTypes = "auto"
    """`explicit`: the type of an array holds its sharding, and jax rejects what it would have to guess."""
    rules: Annotated[dict[str, RuleValue], Meta(extra_json_schema={"properties": _rule_schemas()})] = {}
    """Logical axis to the mesh axis that splits it, or a list of them, major first; "" and axes without a rule are
    unsharded. A list of such lists are alternatives: a dim is split by the first that divides it and needs no axis that
    splits another dim of the array. Your own model may have its own names."""
    overrides: dict[str, OverrideValue] = {}
    """Glob over array names to the spec of one layer's array, for what logical axes cannot express. The first match is
    used. Moments (`mu.*`, `nu.*`) have the layout of their parameter unless a glob matches them; only globs that begin
    with `batch` match arrays of the batch."""


def load_preset(name: str) -> Preset:
    """Reads a preset by name, or by file if `name` has a `/` or ends in `.toml`. Raises UserError."""
    if is_file(name):
        path = expanded(name)
        with refusing(f"--preset {name}"):
            if not path.exists():
                raise UserError(f"--preset {name}: no such file")
        return read_preset(path)
    files = preset_files("parallelism")
    if name in files:
        return read_preset(files[name])
    if preset := mesh_preset(name):
        return preset
    raise UserError(
        f"preset {name}: no such preset: {suggestion(name, files)}choose from {', '.join(files)}, name a mesh of "
        f"the axes {', '.join(MESH_RULES)}, such as fsdp4-model2, or give the path of a .toml file"
    )


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
    rules = {logical: (axes,) for logical, axes in _mesh_rules(mesh).items() if logical not in unsharded}
    microbatches = int(found["microbatches"]) if found["microbatches"] else None
    return Preset(name, "named by its mesh", "", mesh, rules, {}, BUILT_IN, microbatches=microbatches)


def _mesh_rules(mesh: dict[str, int]) -> dict[str, Axes]:
    rules: dict[str, Axes] = {}
    for axis in (axis for axis in MESH_RULES if axis in mesh):
        for logical, axes in MESH_RULES[axis].items():
            rules[logical] = (*rules.get(logical, ()), *axes)
    if {"fsdp", "seq"} <= mesh.keys():  # as `sp2`: devices that share a sequence need not repeat its parameters
        rules["embed"] = ("fsdp", "seq")
    return rules


def is_file(name: str) -> bool:
    return "/" in name or name.endswith(".toml")


def name_of(name_or_file: str) -> str:
    return Path(name_or_file).stem if is_file(name_or_file) else name_or_file


def read_preset(path: Path) -> Preset:
    """Reads the preset in a file. Raises UserError without a valid mesh; `Preset.problems` has the others."""
    return parse_preset(path, read_text(path, MAX_FILE_BYTES))


def parse_preset(path: Path, text: str) -> Preset:
    tables, known = parse_toml(path, text), PresetFile.__struct_fields__
    problems = [f"{key}: unknown key: the keys are {', '.join(known)}" for key in tables if key not in known]
    if not FILE_NAME.fullmatch(path.stem):
        problems.append(BAD_NAME)
    try:
        globs = msgspec.convert(tables.get("overrides", {}), dict[str, Any])
        others = {key: value for key, value in tables.items() if key in known and key != "overrides"}
        file = msgspec.convert(others, PresetFile)
    except msgspec.ValidationError as error:
        raise _invalid(path, [*problems, wrong_value(error, PresetFile)]) from error
    mesh_problems = _mesh_problems(file.mesh)
    rules = _rules(file, problems)
    overrides = _overrides(globs, file.mesh, problems)
    if mesh_problems:
        raise _invalid(path, problems + mesh_problems)
    source = BUILT_IN if path.is_relative_to(PRESETS) else str(path)
    preset = Preset(
        path.stem,
        file.summary,
        file.teaches,
        file.mesh,
        rules,
        overrides,
        source,
        microbatches=file.microbatches,
        pipeline_repeats=file.pipeline_repeats,
        axis_types=file.axis_types,
    )
    if not preset.stage_axes:
        given = {"microbatches": file.microbatches, "pipeline_repeats": file.pipeline_repeats > 1}
        problems += [NO_STAGES.format(key=key) for key, is_given in given.items() if is_given]
    return msgspec.structs.replace(preset, problems=_invalid(path, problems).problems)


def _rules(file: PresetFile, problems: list[str]) -> dict[str, tuple[Axes, ...]]:
    """Returns the valid rules with their alternatives. Problems of the others are added to `problems`."""
    rules: dict[str, tuple[Axes, ...]] = {}
    for logical, value in file.rules.items():
        tried, wrong = _tried(logical, value)
        wrong += [text for axes in tried for text in _axis_problems(axes, file.mesh)]
        problems += [f"[rules] {logical}: {text}" for text in dict.fromkeys(wrong)]
        if not wrong:
            rules[logical] = tried
    return rules


def _tried(logical: str, value: RuleValue) -> tuple[tuple[Axes, ...], list[str]]:
    entries = [value] if isinstance(value, str) else value
    names = [entry for entry in entries if isinstance(entry, str)]
    if len(names) == len(entries):
        return (_axes(names),), []
    tried = tuple(_axes(entry) for entry in entries)
    wrong: list[str] = []
    if names:
        wrong.append(
            'axes and lists are mixed: write each alternative as a list, such as [["model"], ["fsdp", "model"]]'
        )
    if len(tried) > 1 and logical in SPLIT_ONCE:
        wrong.append(f"{len(tried)} alternatives, but the whole step splits {logical} in one way: keep one")
    return tried, wrong


def _overrides(globs: dict[str, Any], mesh: dict[str, int], problems: list[str]) -> dict[str, Override]:
    overrides: dict[str, Override] = {}
    for glob, value in globs.items():
        try:
            override = _override(value)
        except msgspec.ValidationError as error:
            problems.append(f'[overrides] "{glob}": {wrong_value(error, PresetFile)}')
            continue
        wrong = _axis_problems(tuple(axis for axes in override.spec for axis in axes), mesh)
        problems += [f'[overrides] "{glob}": {text}' for text in wrong]
        if not wrong:
            overrides[glob] = override
    return overrides


def _invalid(path: Path, problems: list[str]) -> UserError:
    return UserError(*(f"{path}: {problem}" for problem in problems))


def load_presets(folder: Path | None = None) -> tuple[list[Preset], list[str]]:
    """Returns all presets that can be read, those in `folder` last, and the problems of those that cannot."""
    presets: list[Preset] = []
    problems = [f"{path}: {BAD_NAME}" for path in misnamed_files("parallelism")]
    others = sorted(folder.glob("*.toml")) if folder else []
    for path in (*preset_files("parallelism").values(), *others):
        with noting(problems):
            presets.append(read_preset(path))
    return presets, problems


def _override(value: object) -> Override:
    read = msgspec.convert(value, OverrideValue)
    table = read if isinstance(read, OverrideTable) else OverrideTable(read)
    return Override(tuple(_axes(entry) for entry in table.spec), table.min_size)


def _axes(value: Dim) -> Axes:
    return tuple(axis for axis in ([value] if isinstance(value, str) else value) if axis)


def _mesh_problems(mesh: dict[str, int]) -> list[str]:
    problems = [] if mesh else ["[mesh]: no axis: add one, such as data = -1"]
    if len(mesh) > MAX_AXES:
        problems.append(f"[mesh]: {len(mesh)} axes: use at most {MAX_AXES}")
    for axis, size in mesh.items():
        if abs(size) > LARGEST_AXIS:  # the message leaves it out: it may have thousands of digits
            problems.append(f"[mesh] {axis!r}: a size must be at most {LARGEST_AXIS:,}")
            continue
        if not AXIS_NAME.fullmatch(axis):
            problems.append(f"[mesh] {axis!r}: an axis name is letters, digits and _")
        if size < 1 and size != REST:
            problems.append(f"[mesh] {axis} = {size}: a size must be 1 or more, or -1 for the remaining devices")
    if list(mesh.values()).count(REST) > 1:
        problems.append("[mesh]: -1 is given more than once: only one axis can take the remaining devices")
    return problems


def _axis_problems(axes: Axes, mesh: dict[str, int]) -> list[str]:
    problems = [
        f"no mesh axis {axis!r}: the mesh has {', '.join(mesh) or 'none'}"
        for axis in dict.fromkeys(axes)
        if axis not in mesh
    ]
    twice = [axis for axis in dict.fromkeys(axes) if axes.count(axis) > 1]
    return problems + [f"mesh axis {axis!r} is named twice: an array can use each mesh axis once" for axis in twice]
