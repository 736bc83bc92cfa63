"""A preset that is being edited, together with the preset it is made from. Nothing here draws."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from ...engine.base.output import printable
from ...engine.base.user_error import UserError, noting
from ...engine.spec.preset import FOLLOWS, UNSPLIT, Axes, Preset, reference
from ...engine.spec.preset_files import PRESETS, user_presets
from ...engine.spec.preset_reader import REST, load_preset, mesh_preset, parse_preset
from ...engine.spec.preset_writer import preset_text
from ...engine.wire.framing import MAX_COMMAND_BYTES
from .run_state import RunState

EDITED = re.compile(r"-edited(-\d+)?$")
"""The suffix that an earlier edit appended to the name."""
MAX_STEM_CHARS = 48
"""Leaves room for `-edited-2`: a name has at most 64 characters."""
UNSHARDED = "unsharded"
"""How the rule of an unsharded dim is shown and typed."""
MAX_SUGGESTED_AXES = 2
"""Mesh axes in a suggested rule, apart from the one with all axes; others must be typed."""


@dataclass(frozen=True)
class Draft:
    """An edited preset. Each edit returns a new draft."""

    origin: Preset
    preset: Preset
    devices: int
    used_names: frozenset[str]
    typed_name: str = ""

    @property
    def is_changed(self) -> bool:
        return bool(self.edits)

    @property
    def name(self) -> str:
        """The typed name; else the origin's, or a free one such as `fsdp-edited` after a change."""
        if self.typed_name or not self.is_changed:
            return self.typed_name or self.origin.name
        stem = EDITED.sub("", self.origin.name).removeprefix("pitfall-")[:MAX_STEM_CHARS]
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        return next(name for end in ends if (name := f"{stem}-edited{end}") not in self.used_names)

    @cached_property
    def text(self) -> str:
        if not self.is_changed:
            return preset_text(self.preset)
        summary = f"{self.origin.name} with {', '.join(self.edits)}"
        return preset_text(msgspec.structs.replace(self.preset, summary=summary, teaches=""))

    @cached_property
    def edits(self) -> list[str]:
        """The edits as text, such as `model = 4` and `embed = fsdp+model`."""
        before, after = self.origin, self.preset
        gone = [f"no axis {axis}" for axis in before.mesh if axis not in after.mesh]
        sizes = [f"{axis} = {size}" for axis, size in after.mesh.items() if before.mesh.get(axis) != size]
        logical = dict.fromkeys((*before.rules, *after.rules))
        rules = [f"{name} = {self.rule_words(name)}" for name in logical if self.is_rule_changed(name)]
        kept = [axis for axis in before.mesh if axis in after.mesh]
        order = [f"{' × '.join(after.mesh)}"] if kept != [axis for axis in after.mesh if axis in before.mesh] else []
        return [*gone, *sizes, *order, *rules]

    @property
    def sizes(self) -> dict[str, int]:
        return self.preset.sizes(self.devices)

    def is_rule_changed(self, logical: str) -> bool:
        return self.preset.rules.get(logical) != self.origin.rules.get(logical)

    def rule_words(self, logical: str) -> str:
        return ", else ".join("+".join(axes) or UNSHARDED for axes in self.preset.rules.get(logical, UNSPLIT))

    def is_size_changed(self, axis: str) -> bool:
        return self.origin.sizes(self.devices).get(axis) != self.sizes[axis]

    def problems(self) -> list[str]:
        problems: list[str] = []
        with noting(problems):
            problems += parse_preset(Path(f"{self.name}.toml"), self.text).problems
        return problems or list(filter(None, [self.preset.size_problem(self.devices)]))

    def with_name(self, name: str) -> "Draft":
        return replace(self, typed_name=name)

    def reset(self) -> "Draft":
        return replace(self, preset=self.origin, typed_name="")

    def with_rule(self, logical: str, *splits: Axes) -> "Draft":
        """An empty rule is kept if the original has it, or if the axis follows another one without a rule."""
        rules, was_split = {**self.preset.rules, logical: splits}, self.origin.axes(logical)
        if not splits[0] and logical not in FOLLOWS and (was_split or logical not in self.origin.rules):
            del rules[logical]
        return self._with(rules=rules)

    def next_rule(self, logical: str, by: int) -> "Draft":
        found, now = self.suggestions(), self.preset.axes(logical)
        at = found.index(now) if now in found else -1 if by > 0 else 0
        return self.with_rule(logical, found[(at + by) % len(found)])

    def suggestions(self) -> list[Axes]:
        axes = tuple(self.preset.mesh)
        counts = sorted({*range(min(len(axes), MAX_SUGGESTED_AXES) + 1), len(axes)})
        return [chosen for count in counts for chosen in itertools.combinations(axes, count)]

    def with_size(self, axis: str, size: int) -> "Draft":
        """Size -1 takes the remaining devices in place of the axis that did. If no axis does, the next one will."""
        mesh, axes = {**self.preset.mesh, axis: size}, [*self.preset.mesh]
        others = axes[axes.index(axis) + 1 :] + axes[: axes.index(axis)]
        if size == REST:
            mesh |= {other: self.sizes[other] for other in others if mesh[other] == REST}
        elif others and REST not in mesh.values():
            mesh[others[0]] = REST
        return self._with(mesh=mesh)

    def next_size(self, axis: str, by: int) -> "Draft":
        """Returns the draft with the next larger (`by` > 0) or smaller size with which the mesh fills the devices."""
        found, now = self.fitting_sizes(axis), self.sizes[axis]
        further = [size for size in found if (size > now if by > 0 else size < now)]
        return self.with_size(axis, min(further) if by > 0 else max(further)) if further else self

    def fitting_sizes(self, axis: str) -> list[int]:
        """Returns the sizes with which the mesh fills the devices, ascending. Another axis takes the other devices."""
        mesh = self.with_size(axis, 1).preset.mesh
        room = self.devices // math.prod(size for size in mesh.values() if size != REST)
        return [size for size in range(1, room + 1) if room % size == 0] if REST in mesh.values() else []

    def with_axis(self, axis: str) -> "Draft":
        return self._with(mesh={**self.preset.mesh, axis: 1}) if axis not in self.preset.mesh else self

    def without_axis(self, axis: str) -> "Draft":
        """Removes a mesh axis from mesh and rules; never the only axis. The first one takes the remaining devices, if
        the removed one did."""
        mesh = {other: size for other, size in self.preset.mesh.items() if other != axis}
        if not mesh:
            return self
        if REST not in mesh.values():
            mesh[next(iter(mesh))] = REST
        draft = self._with(mesh=mesh)
        for logical, (first, *others) in self.preset.rules.items():
            kept = tuple(other for other in first if other != axis)
            draft = draft.with_rule(logical, kept, *(axes for axes in others if axis not in axes))
        return draft

    def _with(self, **changes: object) -> "Draft":
        return replace(self, preset=msgspec.structs.replace(self.preset, **changes))


MAX_TEXT_BYTES = MAX_COMMAND_BYTES // 4
"""Bytes of a preset that can be edited: a preview request carries two, and edits add to them."""
NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]")
MAX_NAME_CHARS = 64
"""Longest name that the engine accepts."""


def read_draft(name: str, state: RunState) -> Draft:
    """Returns a draft of the run's preset of that name, without edits. Raises UserError."""
    info = state.preset_info(name)
    preset = load_preset(reference(info.name, info.source) if info else name)
    size = len(preset_text(preset).encode())
    if size > MAX_TEXT_BYTES:
        raise UserError(f"{preset.source}: {size:,} bytes: at most {MAX_TEXT_BYTES:,} can be edited here")
    preset = msgspec.structs.replace(preset, name=NOT_IN_NAMES.sub("-", preset.name)[:MAX_NAME_CHARS])
    return Draft(preset, preset, 1, frozenset())


def user_file(draft: Draft) -> Path:
    return user_presets() / "parallelism" / f"{draft.name}.toml"


def replaced_by(path: Path) -> str | None:
    """Returns what to ask the user before a preset is written to `path`; None for nothing."""
    name = path.stem
    if path.exists():
        return f"{printable(str(path))} already exists. Replace it?"
    if (PRESETS / "parallelism" / path.name).exists():
        return f"{name} is built in. Replace it with yours in every run that starts from now on?"
    if mesh_preset(name):
        return f"{name} names a mesh. Replace it with yours in every run that starts from now on?"
    return None
