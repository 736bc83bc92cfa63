"""Parallelism presets: a mesh, rules from logical axes to mesh axes, and overrides by array name. Data, not code."""

import math
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from .pipeline_info import PipelineInfo
from .preset_files import user_presets

AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

NO_STAGES = (
    "microbatches: the blocks are no stages of a pipeline: give [rules] layers a mesh axis that splits no activation, "
    "or drop it"
)

BUILT_IN = "built-in"
REST = -1

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
