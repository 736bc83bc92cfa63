"""Parallelism presets: a mesh, rules from logical axes to mesh axes, and overrides by array name. Data, not code."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ..base.invalid import Invalid
from .pipeline_info import PipelineInfo
from .preset_files import FILE_NAME, PRESETS, misnamed_files, parse_toml, preset_files, read_toml, user_presets

AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BAD_NAME = "its name: a preset is called by 1 to 64 letters, digits, '.', '_' and '-': rename the file"
NO_STAGES = (
    "microbatches: the blocks are no stages of a pipeline: give [rules] layers a mesh axis that splits no activation, "
    "or drop it"
)
BUILT_IN = "built-in"
REST = -1
MOST_AXES = 16
LARGEST_AXIS = 10**6
"""Devices along one axis."""
MOST_MICROBATCHES = 10**6

LOGICAL_AXES = {
    "batch": "examples of the batch",
    "seq": "positions of the sequence",
    "keys": "positions that all others read: of keys and values, of a router's choices",
    "activation_embed": "width of the residual stream",
    "embed": "model width, in parameters",
    "qkv": "query, key and value",
    "heads": "attention heads",
    "head_dim": "width of one head",
    "mlp": "hidden width of the MLP, or of each expert",
    "experts": "experts, in parameters and in what they are sent",
    "expert_batch": "examples of the batch, in what experts are sent: what `batch` leaves when `experts` is split",
    "capacity": "tokens that an expert takes of a sequence: split as `seq` is",
    "router": "experts, as a token chooses among them",
    "vocab": "rows of the token table",
    "positions": "rows of the position table",
    "layers": "stacked blocks",
}
"""What the built-in models call their dims. A model may bring names of its own."""

ACTIVATION_AXES = ("batch", "seq", "activation_embed")
"""Of the residual stream."""
MICROBATCHES_PER_STAGE = 4
"""Where a preset does not say: with so many the bubble hardly counts (Huang et al. 2019, "GPipe", section 2.3)."""

Axes = tuple[str, ...]
"""The mesh axes that one dim is split over, major first; empty where the dim is whole."""
AxisTypes = Literal["auto", "explicit"]

MESH_NAME = re.compile(r"(?P<mesh>[a-z]+\d{1,6}(?:-[a-z]+\d{1,6})*)(?P<whole>(?:-whole\.[a-z_]+)*)")
MESH_RULES: dict[str, dict[str, Axes]] = {
    "data": {"batch": ("data",)},
    "fsdp": {"batch": ("fsdp",), "embed": ("fsdp",)},
    "model": {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)},
}
"""What each axis splits in a preset that is named by its mesh."""


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """The layout of every array whose name matches. It speaks of one layer's array: `layers` is left out."""

    spec: tuple[Axes, ...]
    min_size: int = 0
    """Arrays with fewer elements in one layer are replicated instead."""


class Preset(Struct, frozen=True):
    """A file of `presets/parallelism/`, not yet checked against a model or a device count."""

    name: str
    summary: str
    teaches: str
    mesh: dict[str, int]
    rules: dict[str, Axes]
    overrides: dict[str, Override]
    source: str
    """The file; `built-in` for those that come along, or are named by a mesh."""
    problems: tuple[str, ...] = ()
    """What is wrong with the file; rules and overrides that cannot be are left out of the others."""
    microbatches: int | None = None
    """Of a pipeline; None for as many as `pipeline` chooses."""
    axis_types: AxisTypes = "auto"
    """`explicit`: shardings stand in the types of arrays, and jax refuses what it would have to guess."""

    @property
    def stage_axes(self) -> Axes:
        """Where the stacked blocks are stages of a pipeline. Over an axis that splits activations as well they are
        not: what is split over it is gathered for use."""
        layers = self.rules.get("layers", ())
        shared = {axis for name in ACTIVATION_AXES for axis in self.rules.get(name, ())}
        return () if set(layers) & shared else layers

    @property
    def laid_out(self) -> tuple[object, ...]:
        """All that decides what a step under it is; presets may be called otherwise and be the same."""
        return self.mesh, self.rules, self.overrides, self.microbatches, self.axis_types

    @property
    def reference(self) -> str:
        """What `load_preset` finds it by: its name, or its file."""
        return reference(self.name, self.source)

    def sizes(self, device_count: int) -> dict[str, int]:
        """Mesh axis to size on this many devices, in the preset's order; see `size_problem` for whether they fill them.

        -1 becomes what is left, 1 at the least.
        """
        rest = max(1, device_count // self._fixed)
        return {axis: rest if size == REST else size for axis, size in self.mesh.items()}

    def size_problem(self, device_count: int) -> str | None:
        """Why the mesh does not fill this many devices."""
        text = f"{self.name}: mesh {' × '.join(f'{axis}={size}' for axis, size in self.mesh.items())}"
        if REST not in self.mesh.values() and self._fixed != device_count:
            axis = next(iter(self.mesh))
            return f"{text} needs {self._fixed} devices, {device_count} found: set {axis} = -1 to take what is left"
        if device_count % self._fixed:
            fitting = device_count // self._fixed * self._fixed or self._fixed
            return (
                f"{text} needs a multiple of {self._fixed} devices, {device_count} found: "
                f"use {fitting} devices or another size"
            )
        return None

    def pipeline(self, device_count: int, batch_size: int) -> PipelineInfo | None:
        """None where the blocks are no stages, or all of them one."""
        stages = self._count(self.stage_axes, device_count)
        if stages == 1:
            return None
        group = batch_size // self._count(self.rules.get("batch", ()), device_count)
        most = (n for n in range(1, MICROBATCHES_PER_STAGE * stages + 1) if group % n == 0)
        microbatches = self.microbatches or max(most)
        bubble = (stages - 1) / (microbatches + stages - 1)
        return PipelineInfo(axes=list(self.stage_axes), stages=stages, microbatches=microbatches, bubble=bubble)

    def microbatch_problem(self, device_count: int, batch_size: int) -> str | None:
        """Why a batch that divides among the devices does not divide further."""
        axes = self.rules.get("batch", ())
        group, rest = divmod(batch_size, self._count(axes, device_count))
        if rest or not self.microbatches or group % self.microbatches == 0:
            return None
        over = f" ÷ {' × '.join(axes)} ({batch_size // group})" if axes else ""
        fitting = -(-group // self.microbatches) * self.microbatches * (batch_size // group)
        return (
            f"{self.name}: microbatches = {self.microbatches}: batch {batch_size}{over} = {group} does not divide by "
            f"it: make it a divisor of {group}, or the batch {fitting}"
        )

    def _count(self, axes: Axes, device_count: int) -> int:
        sizes = self.sizes(device_count)
        return math.prod(sizes[axis] for axis in axes)

    @property
    def _fixed(self) -> int:
        return math.prod(size for size in self.mesh.values() if size != REST)


def reference(name: str, source: str) -> str:
    by_name = source == BUILT_IN or Path(source).parent == user_presets() / "parallelism"
    return name if by_name else source


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
