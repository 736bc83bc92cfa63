"""A preset that is being edited, beside the one that it is made from. Nothing of it is drawn here."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.spec.preset import Axes, Preset
from ...engine.spec.preset_file import preset_text
from ...engine.spec.preset_reader import REST, parse_preset

EDITED = re.compile(r"-edited(-\d+)?$")
LONGEST_STEM = 48
"""Characters: a name has 64 at most."""
WHOLE = "whole"
MOST_SUGGESTED = 2
"""Mesh axes in what is suggested for a rule, and besides all of them: more are typed."""


@dataclass(frozen=True)
class Draft:
    """Each change makes another one."""

    origin: Preset
    preset: Preset
    devices: int
    taken: frozenset[str]
    """Names that the run's presets have."""
    typed_name: str = ""

    @property
    def is_changed(self) -> bool:
        return bool(self.edits)

    @property
    def name(self) -> str:
        """As typed; else its own while it is as it was, and then one that is free."""
        if self.typed_name or not self.is_changed:
            return self.typed_name or self.origin.name
        stem = EDITED.sub("", self.origin.name).removeprefix("pitfall-")[:LONGEST_STEM]
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        return next(name for end in ends if (name := f"{stem}-edited{end}") not in self.taken)

    @cached_property
    def text(self) -> str:
        """Of its file."""
        if not self.is_changed:
            return preset_text(self.preset)
        summary = f"{self.origin.name} with {', '.join(self.edits)}"
        return preset_text(msgspec.structs.replace(self.preset, summary=summary, teaches=""))

    @cached_property
    def edits(self) -> list[str]:
        """In words, such as `model = 4` and `embed = fsdp+model`."""
        before, after = self.origin, self.preset
        gone = [f"no axis {axis}" for axis in before.mesh if axis not in after.mesh]
        sizes = [f"{axis} = {size}" for axis, size in after.mesh.items() if before.mesh.get(axis) != size]
        logical = dict.fromkeys((*before.rules, *after.rules))
        rules = [f"{name} = {in_words(self.rule(name))}" for name in logical if self.is_other_rule(name)]
        kept = [axis for axis in before.mesh if axis in after.mesh]
        order = [f"{' × '.join(after.mesh)}"] if kept != [axis for axis in after.mesh if axis in before.mesh] else []
        return [*gone, *sizes, *order, *rules]

    @property
    def sizes(self) -> dict[str, int]:
        return self.preset.sizes(self.devices)

    def rule(self, logical: str) -> Axes:
        return self.preset.rules.get(logical, ())

    def is_other_rule(self, logical: str) -> bool:
        return self.rule(logical) != self.origin.rules.get(logical, ())

    def is_other_size(self, axis: str) -> bool:
        return self.origin.sizes(self.devices).get(axis) != self.sizes[axis]

    def problems(self) -> list[str]:
        """What can be told without knowing the arrays."""
        try:
            problems = list(parse_preset(Path(f"{self.name}.toml"), self.text).problems)
        except Invalid as error:
            problems = list(error.problems)
        return problems or list(filter(None, [self.preset.size_problem(self.devices)]))

    def named(self, name: str) -> "Draft":
        return replace(self, typed_name=name)

    def reset(self) -> "Draft":
        return replace(self, preset=self.origin, typed_name="")

    def ruled(self, logical: str, axes: Axes) -> "Draft":
        rules = {**self.preset.rules, logical: axes}
        if not axes and self.origin.rules.get(logical) != axes:
            del rules[logical]
        return self._with(rules=rules)

    def next_rule(self, logical: str, by: int) -> "Draft":
        """The suggestion after the present one, or before it."""
        found, now = self.suggestions(), self.rule(logical)
        at = found.index(now) if now in found else -1 if by > 0 else 0
        return self.ruled(logical, found[(at + by) % len(found)])

    def suggestions(self) -> list[Axes]:
        """For a rule: whole, each mesh axis, each two of them, all."""
        axes = tuple(self.preset.mesh)
        counts = sorted({*range(min(len(axes), MOST_SUGGESTED) + 1), len(axes)})
        return [chosen for count in counts for chosen in itertools.combinations(axes, count)]

    def sized(self, axis: str, size: int) -> "Draft":
        """Where no other axis takes what is left, the next one does. With -1 the axis takes that itself, and what took
        it before keeps its size."""
        mesh, axes = {**self.preset.mesh, axis: size}, [*self.preset.mesh]
        others = axes[axes.index(axis) + 1 :] + axes[: axes.index(axis)]
        if size == REST:
            mesh |= {other: self.sizes[other] for other in others if mesh[other] == REST}
        elif others and REST not in mesh.values():
            mesh[others[0]] = REST
        return self._with(mesh=mesh)

    def next_size(self, axis: str, by: int) -> "Draft":
        """The next larger or smaller one with which the axes fill the devices."""
        found, now = self.fitting_sizes(axis), self.sizes[axis]
        further = [size for size in found if (size > now if by > 0 else size < now)]
        return self.sized(axis, min(further) if by > 0 else max(further)) if further else self

    def fitting_sizes(self, axis: str) -> list[int]:
        """With each of which the axes fill the devices, ascending; another axis takes what is left."""
        mesh = self.sized(axis, 1).preset.mesh
        room = self.devices // math.prod(size for size in mesh.values() if size != REST)
        return [size for size in range(1, room + 1) if room % size == 0] if REST in mesh.values() else []

    def with_axis(self, axis: str) -> "Draft":
        return self._with(mesh={**self.preset.mesh, axis: 1}) if axis not in self.preset.mesh else self

    def without_axis(self, axis: str) -> "Draft":
        """Nor in any rule. Where it took what was left, the first one does; a mesh has at least one."""
        mesh = {other: size for other, size in self.preset.mesh.items() if other != axis}
        if not mesh:
            return self
        if REST not in mesh.values():
            mesh[next(iter(mesh))] = REST
        draft = self._with(mesh=mesh)
        for logical, axes in self.preset.rules.items():
            draft = draft.ruled(logical, tuple(other for other in axes if other != axis))
        return draft

    def _with(self, **changes: object) -> "Draft":
        return replace(self, preset=msgspec.structs.replace(self.preset, **changes))


def in_words(axes: Axes) -> str:
    return "+".join(axes) or WHOLE
