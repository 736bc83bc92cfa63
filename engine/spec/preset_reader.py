"""Presets by name, from files, and as meshes that name themselves."""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..base.invalid import Invalid
from .preset import AXIS_NAME, BUILT_IN, NO_STAGES, REST, Axes, AxisTypes, Override, Preset
from .preset_files import FILE_NAME, PRESETS, misnamed_files, parse_toml, preset_files, read_toml

BAD_NAME = "its name: a preset is called by 1 to 64 letters, digits, '.', '_' and '-': rename the file"


MOST_AXES = 16

LARGEST_AXIS = 10**6
"""Devices along one axis."""

MOST_MICROBATCHES = 10**6

MESH_NAME = re.compile(r"(?P<mesh>[a-z]+\d{1,6}(?:-[a-z]+\d{1,6})*)(?P<whole>(?:-whole\.[a-z_]+)*)")

MESH_RULES: dict[str, dict[str, Axes]] = {
    "data": {"batch": ("data",)},
    "fsdp": {"batch": ("fsdp",), "embed": ("fsdp",)},
    "model": {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)},
}
"""What each axis splits in a preset that is named by its mesh."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of the file itself, before names are looked up."""

    mesh: dict[str, int]
    summary: str = ""
    teaches: str = ""
    microbatches: Annotated[int, Meta(ge=1, le=MOST_MICROBATCHES)] | None = None
    axis_types: AxisTypes = "auto"
    rules: dict[str, str | list[str]] = {}
    overrides: dict[str, list[str | list[str]] | dict[str, Any]] = {}


class _OverrideTable(Struct, frozen=True, forbid_unknown_fields=True):
    spec: list[str | list[str]]
    min_size: int = 0


def load_preset(name: str) -> Preset:
    """A preset by name or, where `name` holds a path separator or ends in `.toml`, by file. Raises Invalid."""
    if is_file(name):
        try:
            path = Path(name).expanduser()
            found = path.exists()
        except (OSError, RuntimeError) as error:  # a name too long; a ~user that there is not
            raise Invalid(f"--preset {name}: {error}") from error
        if not found:
            raise Invalid(f"--preset {name}: no such file")
        return read_preset(path)
    files = preset_files("parallelism")
    if name in files:
        return read_preset(files[name])
    if preset := mesh_preset(name):
        return preset
    raise Invalid(
        f"preset {name}: no such preset: choose from {', '.join(files)}, name a mesh of {', '.join(MESH_RULES)} "
        "such as fsdp4-model2, or give a path to a .toml file"
    )


def mesh_preset(name: str) -> Preset | None:
    """The preset that a name such as `data2-fsdp4-model2-whole.vocab` says: axes with sizes in the order of the mesh,
    and dims that `model` leaves whole. None where it says none."""
    found = MESH_NAME.fullmatch(name)
    sizes = re.findall(r"([a-z]+)(\d+)", found["mesh"]) if found else []
    mesh = {axis: int(size) for axis, size in sizes}
    whole = found["whole"].split("-whole.")[1:] if found else []
    if not set(mesh) <= set(MESH_RULES) or not set(whole) <= set(MESH_RULES["model"]) or len(mesh) < len(sizes):
        return None
    if not mesh or min(mesh.values()) < 1:
        return None
    rules: dict[str, Axes] = {}
    for axis in (axis for axis in MESH_RULES if axis in mesh):
        for logical, axes in MESH_RULES[axis].items():
            rules[logical] = (*rules.get(logical, ()), *axes)
    rules = {logical: axes for logical, axes in rules.items() if logical not in whole}
    return Preset(name, "named by its mesh", "", mesh, rules, {}, BUILT_IN)


def is_file(name: str) -> bool:
    """A preset named so is one of a file, not one of the known directories."""
    return "/" in name or name.endswith(".toml")


def name_of(name_or_file: str) -> str:
    return Path(name_or_file).stem if is_file(name_or_file) else name_or_file


def read_preset(path: Path) -> Preset:
    """The preset in a file, with the problems that are told together with those of its placement.

    Raises Invalid where there is no mesh to go on with.
    """
    return _preset(path, read_toml(path))


def parse_preset(path: Path, text: str) -> Preset:
    """As `read_preset`, of what would stand in the file."""
    return _preset(path, parse_toml(path, text))


def _preset(path: Path, tables: dict[str, Any]) -> Preset:
    known = _File.__struct_fields__
    problems = [f"{key}: unknown key: the keys are {', '.join(known)}" for key in tables if key not in known]
    if not FILE_NAME.fullmatch(path.stem):
        problems.append(BAD_NAME)
    try:
        file = msgspec.convert({key: value for key, value in tables.items() if key in known}, _File)
    except msgspec.ValidationError as error:
        raise _invalid(path, [*problems, _plain(error)]) from error
    mesh_problems = _mesh_problems(file.mesh)
    rules = _rules(file, problems)
    overrides = _overrides(file, problems)
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
        axis_types=file.axis_types,
    )
    if file.microbatches and not preset.stage_axes:
        problems.append(NO_STAGES)
    return msgspec.structs.replace(preset, problems=_invalid(path, problems).problems)


def _rules(file: _File, problems: list[str]) -> dict[str, Axes]:
    """The rules that name axes of the mesh; what is wrong with the others is added to `problems`."""
    rules: dict[str, Axes] = {}
    for logical, value in file.rules.items():
        wrong = _axis_problems(_axes(value), file.mesh)
        problems += [f"[rules] {logical}: {text}" for text in wrong]
        if not wrong:
            rules[logical] = _axes(value)
    return rules


def _overrides(file: _File, problems: list[str]) -> dict[str, Override]:
    """The overrides that can be read; what is wrong with the others is added to `problems`."""
    overrides: dict[str, Override] = {}
    for glob, value in file.overrides.items():
        try:
            override = _override(value)
        except msgspec.ValidationError as error:
            problems.append(f'[overrides] "{glob}": {_plain(error)}')
            continue
        wrong = _axis_problems(tuple(axis for axes in override.spec for axis in axes), file.mesh)
        problems += [f'[overrides] "{glob}": {text}' for text in wrong]
        if not wrong:
            overrides[glob] = override
    return overrides


def _invalid(path: Path, problems: list[str]) -> Invalid:
    return Invalid(*(f"{path}: {problem}" for problem in problems))


def load_presets(folder: Path | None = None) -> tuple[list[Preset], list[str]]:
    """All presets that read well, built-in ones first and those in `folder` last, and the problems of those that do
    not."""
    presets: list[Preset] = []
    problems = [f"{path}: {BAD_NAME}" for path in misnamed_files("parallelism")]
    others = sorted(folder.glob("*.toml")) if folder else []
    for path in (*preset_files("parallelism").values(), *others):
        try:
            presets.append(read_preset(path))
        except Invalid as error:
            problems += error.problems
    return presets, problems


def _plain(error: msgspec.ValidationError) -> str:
    """msgspec's message with its `$.mesh[...]` path as the words of the file."""
    return str(error).replace(" - at `$", " at `")


def _override(value: list[str | list[str]] | dict[str, Any]) -> Override:
    table = msgspec.convert(value if isinstance(value, dict) else {"spec": value}, _OverrideTable)
    return Override(tuple(_axes(entry) for entry in table.spec), table.min_size)


def _axes(value: str | list[str]) -> Axes:
    return tuple(axis for axis in ([value] if isinstance(value, str) else value) if axis)


def _mesh_problems(mesh: dict[str, int]) -> list[str]:
    problems = [] if mesh else ["[mesh]: no axis: give one, for example data = -1"]
    if len(mesh) > MOST_AXES:
        problems.append(f"[mesh]: {len(mesh)} axes: at most {MOST_AXES}")
    for axis, size in mesh.items():
        if abs(size) > LARGEST_AXIS:  # and not named: it may have thousands of digits
            problems.append(f"[mesh] {axis!r}: a size is at most {LARGEST_AXIS:,}")
            continue
        if not AXIS_NAME.fullmatch(axis):
            problems.append(f"[mesh] {axis!r}: an axis name is letters, digits and _")
        if size < 1 and size != REST:
            problems.append(f"[mesh] {axis} = {size}: a size is 1 or more, or -1 for what is left")
    if list(mesh.values()).count(REST) > 1:
        problems.append("[mesh]: -1 stands more than once: only one axis can take what is left")
    return problems


def _axis_problems(axes: Axes, mesh: dict[str, int]) -> list[str]:
    problems = [
        f"no mesh axis {axis!r}: the mesh has {', '.join(mesh) or 'none'}"
        for axis in dict.fromkeys(axes)
        if axis not in mesh
    ]
    twice = [axis for axis in dict.fromkeys(axes) if axes.count(axis) > 1]
    return problems + [f"mesh axis {axis!r} stands twice: one array can use an axis once" for axis in twice]
