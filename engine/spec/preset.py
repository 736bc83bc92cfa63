"""Parallelism presets: a mesh, rules from logical axes to mesh axes, and overrides by array name. Data, not code."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from .preset_files import user_presets

AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_STAGES = (
    "{key}: the preset has no pipeline stages: give layers in [rules] a mesh axis that splits no activation, "
    "or remove {key}"
)
BUILT_IN = "built-in"
REST = -1
LOGICAL_AXES = {
    "batch": "examples in the batch",
    "seq": "positions in the sequence",
    "keys": "positions that every other position reads: of keys and values, and of a router's choices",
    "activation_embed": "width of the residual stream",
    "saved_embed": "width of the residual stream as remat saves it between blocks: split like `heads`",
    "embed": "model width, in parameters",
    "qkv": "query, key and value",
    "heads": "attention heads",
    "kv_heads": "heads of keys and values, if queries have more: split like `heads`",
    "head_dim": "width of one head",
    "mlp": "hidden width of the MLP, or of each expert",
    "experts": "experts, in their parameters and in the tokens sent to them",
    "expert_batch": "examples, of tokens sent to experts: split like `batch`, except over the axes of `experts`",
    "capacity": "tokens of a sequence that an expert accepts: split like `seq`",
    "router": "experts, in the router that chooses among them",
    "vocab": "rows of the token embedding",
    "positions": "rows of the position embedding",
    "layers": "stacked blocks",
}
"""Logical axes of the built-in models, with their meaning. A user's model may have others."""
ONLY_ACTIVATIONS = ("batch", "seq", "keys", "activation_embed", "saved_embed")
"""Those that no parameter has."""
OF_SENT_TOKENS = ("expert_batch", "capacity")
"""Those of tokens sent to experts."""
FOLLOWS = {"saved_embed": "heads", "kv_heads": "heads", "expert_batch": "batch", "capacity": "seq"}
"""Logical axes that are split like another one, unless a preset has a rule for them."""
OF_SOME_PARAMETERS = {
    "embed_attn": ("embed", {"heads", "kv_heads"}),
    "embed_moe": ("embed", {"experts"}),
    "embed_router": ("embed", {"router"}),
    "embed_vocab": ("embed", {"vocab"}),
    "mlp_moe": ("mlp", {"experts"}),
}
"""Rules, as in MaxText, that replace the one of a logical axis in the parameters that have another one, too."""
ACTIVATION_AXES = ("batch", "seq", "activation_embed")
MICROBATCHES_PER_STAGE = 4
"""The default: with this many the bubble is negligible (Huang et al. 2019, "GPipe", section 2.3)."""
Axes = tuple[str, ...]
"""The mesh axes that one dim is split over, major first; empty if the dim is unsharded."""
Rules = Mapping[str, tuple[Axes, ...]]
"""Logical axis to the splits that are tried, in this order, for its dims: mostly one. Without a rule, `UNSPLIT`."""
UNSPLIT: tuple[Axes, ...] = ((),)
SPLIT_ONCE = ("batch", "seq", "layers", "experts")
"""Logical axes that a step splits in one way: its groups of tokens, its pipeline and its experts depend on it."""
AxisTypes = Literal["auto", "explicit"]


class PipelineInfo(Struct, frozen=True, kw_only=True):
    """Stages of blocks, which the batch passes through in micro-batches, once or several times."""

    axes: list[str]
    """The mesh axes that the stages are split over."""
    stages: int
    """Stages, each with the same number of blocks."""
    microbatches: int
    """Micro-batches in a step."""
    repeats: int = 1
    """Passes of each micro-batch through all stages: a stage has that many chunks of consecutive blocks, and chunk c
    of all is in stage c % stages."""
    bubble: float
    """The fraction of ticks that a stage is idle: (S - 1) / (R M + S - 1) with S stages, M micro-batches and R repeats.
    """

    @property
    def ticks(self) -> int:
        """Ticks in a pass: in each, a stage processes one micro-batch and hands it on to the next stage."""
        return self.repeats * self.microbatches + self.stages - 1

    @property
    def exchanges(self) -> list[list[int]]:
        """The permutations that take stages from consecutive chunks to interleaved ones, each with the chunks that
        stages send. With R repeats, stage s has the chunks R s … R s + R - 1, and chunk c goes to stage c % S, to be
        number c // S there, in permutation (c + c // lcm(R, S)) % R: in none does a stage send or receive two."""
        block, chunks = math.lcm(self.repeats, self.stages), range(self.repeats * self.stages)
        return [[c for c in chunks if (c + c // block) % self.repeats == number] for number in range(self.repeats)]


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """The layout of every array whose name matches a glob, in place of the rules."""

    spec: tuple[Axes, ...]
    """The mesh axes of each dim of one layer's array: the dim `layers` of stacked blocks is left out."""
    min_size: int = 0
    """Arrays with fewer elements per layer are replicated instead."""


class Preset(Struct, frozen=True):
    """A parallelism preset as read from its file, not yet checked against a model or a device count."""

    name: str
    summary: str
    teaches: str
    mesh: dict[str, int]
    rules: dict[str, tuple[Axes, ...]]
    overrides: dict[str, Override]
    source: str
    """The file; `built-in` for a built-in preset and for one that is named by its mesh."""
    problems: tuple[str, ...] = ()
    """Problems of the file, whose invalid rules and overrides are left out."""
    microbatches: int | None = None
    """Micro-batches of the pipeline; None to let `pipeline` choose."""
    pipeline_repeats: int = 1
    axis_types: AxisTypes = "auto"
    """`explicit`: shardings are part of array types, and jax rejects operations whose sharding is ambiguous."""

    def axes(self, logical: str) -> Axes:
        """Returns the first split of a logical axis; none without a rule."""
        return self.rules.get(logical, UNSPLIT)[0]

    @property
    def with_alternatives(self) -> dict[str, tuple[Axes, ...]]:
        """The rules with more than one split."""
        return {logical: splits for logical, splits in self.rules.items() if len(splits) > 1}

    @property
    def stage_axes(self) -> Axes:
        """Mesh axes over which the blocks are pipeline stages; empty if they are not stages. If an axis of `layers`
        also splits activations, the blocks are no stages: they are gathered for use."""
        layers = self.axes("layers")
        shared = {axis for name in ACTIVATION_AXES for axis in self.axes(name)}
        return () if set(layers) & shared else layers

    @property
    def layout(self) -> tuple[object, ...]:
        """Presets with equal layouts compile to the same step."""
        schedule = self.microbatches, self.pipeline_repeats
        return self.mesh, self.rules, self.overrides, schedule, self.axis_types

    @property
    def reference(self) -> str:
        return reference(self.name, self.source)

    def sizes(self, device_count: int) -> dict[str, int]:
        """Returns mesh axis to size; -1 becomes the number of remaining devices, at least 1, see `size_problem`."""
        rest = max(1, device_count // self._fixed)
        return {axis: rest if size == REST else size for axis, size in self.mesh.items()}

    def parts(self, logical_axis: str, device_count: int) -> int:
        """Returns into how many parts its rule splits a logical axis; 1 without a rule."""
        sizes = self.sizes(device_count)
        return math.prod(sizes[axis] for axis in self.axes(logical_axis))

    def size_problem(self, device_count: int) -> str | None:
        """Returns why the mesh does not fit `device_count` devices exactly; None if it does."""
        text = f"{self.name}: mesh {' × '.join(f'{axis}={size}' for axis, size in self.mesh.items())}"
        if REST not in self.mesh.values() and self._fixed != device_count:
            axis = next(iter(self.mesh))
            return (
                f"{text} needs {self._fixed} devices, {device_count} found: "
                f"set {axis} = -1 to take the remaining devices"
            )
        if device_count % self._fixed:
            fitting = device_count // self._fixed * self._fixed or self._fixed
            return (
                f"{text} needs a multiple of {self._fixed} devices, {device_count} found: "
                f"use {fitting} devices or another size"
            )
        return None

    def shrunk(self, device_count: int) -> "Preset":
        """Returns the preset with a mesh for these devices: the same one if it fits. Fixed sizes shrink to divisors of
        themselves, first axes first: last ones have the fastest links. What they leave goes to the axis of size -1, or
        to the first one."""
        if self.size_problem(device_count) is None:
            return self
        rest, mesh = device_count, dict(self.mesh)
        for axis, size in reversed(self.mesh.items()):
            if size != REST:
                mesh[axis] = math.gcd(size, rest)
                rest //= mesh[axis]
        if REST not in mesh.values():
            mesh[next(iter(mesh))] *= rest
        return msgspec.structs.replace(self, mesh=mesh)

    def pipeline(self, device_count: int, batch_size: int) -> PipelineInfo | None:
        """Returns the pipeline for this many devices and this global batch; None if there is at most one stage."""
        stages = self.parts("layers", device_count) if self.stage_axes else 1
        if stages == 1:
            return None
        group = batch_size // self.parts("batch", device_count)
        most = (n for n in range(1, MICROBATCHES_PER_STAGE * stages + 1) if group % n == 0)
        microbatches = self.microbatches or max(most)
        bubble = (stages - 1) / (self.pipeline_repeats * microbatches + stages - 1)
        return PipelineInfo(
            axes=list(self.stage_axes),
            stages=stages,
            microbatches=microbatches,
            repeats=self.pipeline_repeats,
            bubble=bubble,
        )

    def microbatch_problem(self, device_count: int, batch_size: int) -> str | None:
        """Returns why a group's share of the batch, if the devices divide it, does not divide into `microbatches`."""
        origin = f"{self.name}: microbatches = {self.microbatches}"
        return self._group_problem(origin, device_count, batch_size, self.microbatches or 1)

    def least_batch(self, device_count: int, accumulate_steps: int = 1) -> int:
        """Returns the smallest batch that divides by the devices and into micro-batches: others are multiples of it."""
        parts = self.parts("batch", device_count)
        return parts * (self.microbatches or 1 if self.stage_axes else accumulate_steps)

    def accumulation_problem(self, device_count: int, batch_size: int, accumulate_steps: int) -> str | None:
        """Returns why the batch cannot be accumulated in so many micro-batches, if it divides by the devices at all."""
        if accumulate_steps == 1:
            return None
        origin = f"{self.name}: accumulate_steps = {accumulate_steps}"
        if self.stage_axes:
            return f"{origin}: a pipeline has micro-batches of its own: set microbatches, and accumulate_steps=1"
        return self._group_problem(origin, device_count, batch_size, accumulate_steps)

    def _group_problem(self, origin: str, device_count: int, batch_size: int, parts: int) -> str | None:
        axes = self.axes("batch")
        group, rest = divmod(batch_size, self.parts("batch", device_count))
        if rest or group % parts == 0:
            return None
        groups = batch_size // group
        over = f" ÷ {' × '.join(axes)} ({groups})" if axes else ""
        return (
            f"{origin}: batch {batch_size}{over} = {group} does not divide by it: "
            f"use a divisor of {group}, or a batch of {-(-group // parts) * parts * groups}"
        )

    def repeat_problem(self, device_count: int, batch_size: int, layers: int) -> str | None:
        """Returns why the layers, if they divide by the stages, or the batch do not suffice for `pipeline_repeats`."""
        info = self.pipeline(device_count, batch_size)
        if info is None or info.repeats == 1 or layers % info.stages:
            return None
        origin, each = f"{self.name}: pipeline_repeats = {info.repeats}", layers // info.stages
        if each % info.repeats:
            fitting = -(-each // info.repeats) * info.repeats * info.stages
            return (
                f"{origin}: {layers} layers ÷ {' × '.join(info.axes)} ({info.stages}) = {each} does not divide by it: "
                f"use a divisor of {each}, or a model of {fitting} layers"
            )
        if info.microbatches < info.stages:
            return (
                f"{origin}: {info.microbatches} micro-batches are fewer than {info.stages} stages, so the first stage "
                f"would wait for the last: use {info.stages} micro-batches or more, or a single pass"
            )
        return None

    def period_problem(self, device_count: int, batch_size: int, layers: int, period: int) -> str | None:
        """Returns why stages of equal size cannot have whole periods of alternating layers."""
        info = self.pipeline(device_count, batch_size)
        if info is None or layers % (info.stages * info.repeats):
            return None
        each = layers // (info.stages * info.repeats)
        if each % period == 0:
            return None
        return (
            f"{self.name}: [rules] layers: {each} layers in each pass of a stage are not whole periods of the model's "
            f"{period} alternating layers: use fewer stages, or a model of {info.stages * info.repeats * period} layers"
        )

    @property
    def _fixed(self) -> int:
        return math.prod(size for size in self.mesh.values() if size != REST)


def reference(name: str, source: str) -> str:
    """Returns the preset's name if it is in a preset directory, else its file, for `load_preset`."""
    by_name = source == BUILT_IN or Path(source).parent == user_presets() / "parallelism"
    return name if by_name else source


class Indivisible(Struct, frozen=True):
    """A dim whose size is not divisible by the number of devices that the preset splits it over."""

    logical_axis: str
    """The logical axis of the dim."""
    size: int
    """Elements along the dim."""
    parts: int
    """Devices that the preset splits it over."""
