"""How a step of the built-in model under a preset is split: its weights, its activations, its stages.

Sizes are those on one device. Dims as in decoder.py.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax

from ..models.task import Array, Task
from ..parallel.rules import Decision, by_rules, with_derived
from ..program.program import decide_all
from ..spec.config import ModelConfig
from ..spec.preset import Axes, Preset

FLOAT32, NARROW = 4, 2
"""Bytes of a number: NARROW of bfloat16."""
SENT, RECEIVED = ("router", "batch", "capacity"), ("experts", "expert_batch", "capacity")
"""Dims of what experts are sent, where it comes from and where it goes to."""
KEYS = ("batch", "keys", "heads", "head_dim")
Spec = tuple[Axes, ...]


@dataclass(frozen=True)
class Weight:
    """A parameter and its layout."""

    array: Array
    spec: Spec
    moments: tuple[Spec, ...]
    """Of its moments."""

    @property
    def name(self) -> str:
        return self.array.names[0]

    @property
    def axes(self) -> set[str]:
        return axes_of(self.spec)

    @property
    def is_stacked(self) -> bool:
        return self.array.logical_axes[:1] == ("layers",)

    @property
    def layers(self) -> int:
        return self.array.shape[0] if self.is_stacked else 1

    @property
    def is_table(self) -> bool:
        return self.array.logical_axes[0] in ("vocab", "positions")

    @property
    def is_kernel(self) -> bool:
        return self.name.endswith(".kernel")


class StepLayout:
    def __init__(self, task: Task, preset: Preset, devices: int) -> None:
        """`task`: of the built-in model. Raises Invalid where the preset cannot be laid out."""
        assert isinstance(task.config.model, ModelConfig)
        self.state, self.batch = decide_all(task, preset, devices)
        self.task, self.preset = task, preset
        self.model, self.training = task.config.model, task.config.training
        self.is_explicit = preset.axis_types == "explicit"
        self.mesh = preset.sizes(devices)
        self.rules = with_derived(preset.rules)
        self.pipeline = preset.pipeline(devices, self.training.batch_size)
        self.on_cpu = task.platform == "cpu"
        self.is_narrow = task.dtype == "bfloat16"
        self.width = NARROW if self.is_narrow and not self.on_cpu else FLOAT32
        """Bytes of what is computed: the CPU's compiler computes and sends bfloat16 as float32."""

    @cached_property
    def weights(self) -> list[Weight]:
        arrays, decisions = (jax.tree.leaves(tree.params) for tree in (self.task.state_arrays, self.state))
        moments: dict[str, list[Spec]] = {}
        for array, decision in zip(*map(jax.tree.leaves, (self.task.state_arrays, self.state)), strict=True):
            if array.kind == "moment":
                moments.setdefault(array.names[1], []).append(spec_of(decision))
        return [
            Weight(array, spec_of(decision), tuple(moments.get(array.names[0], ())))
            for array, decision in zip(arrays, decisions, strict=True)
        ]

    @property
    def layers(self) -> float:
        """Of one stage."""
        return self.model.layers / (self.pipeline.stages if self.pipeline else 1)

    @property
    def microbatches(self) -> int:
        return self.pipeline.microbatches if self.pipeline else 1

    @property
    def ticks(self) -> int:
        return self.pipeline.ticks if self.pipeline else 1

    @property
    def block_runs(self) -> int:
        """How often a device goes through a block, forward."""
        return round(self.layers) * self.ticks

    @property
    def repeats(self) -> float:
        """How often a stage does the work of the whole batch, zeros included."""
        return self.ticks / self.microbatches

    @property
    def slots(self) -> int:
        """Of each expert for each sequence."""
        return self.model.capacity(self.training.seq_len)

    @property
    def batch_axes(self) -> Axes:
        return self.rules.get("batch", ())

    @property
    def seq_axes(self) -> Axes:
        return self.rules.get("seq", ())

    def gather_axes(self, weight: Weight) -> Axes:
        """Those over which a parameter is split, but not the product that it is used in."""
        experts = self.rules.get("experts", ()) if "experts" in weight.array.logical_axes else ()
        kept = {*experts, *(axis for name in weight.array.logical_axes if name for axis in self.tensor_axes(name))}
        kept |= set(self.pipeline.axes) if self.pipeline else set()
        return tuple(axis for axis in self.mesh if axis in weight.axes and axis not in kept)

    def tensor_axes(self, logical: str) -> Axes:
        """Over which an activation's dim of this name is split; batch and sequence have taken their own before."""
        if logical not in ("heads", "mlp", "vocab"):
            return ()
        axes = self.rules.get(logical, ())
        return axes if not set(axes) & {*self.batch_axes, *self.seq_axes} else ()

    def count(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def local(self, shape: tuple[int, ...], spec: Spec) -> int:
        return math.prod(-(-size // self.count(axes)) for size, axes in zip(shape, spec, strict=True))

    def activation(self, logical: tuple[str, ...]) -> int:
        """Elements of an activation with these dims."""
        sizes = _dims(self.model, self.training.batch_size, self.training.seq_len)
        shape = tuple(sizes[name] for name in logical)
        return self.local(shape, spec_of(by_rules(shape, logical, self.rules, self.mesh)))

    def residual(self) -> float:
        """The residual stream [B, T, D]."""
        return self.activation(("batch", "seq", "activation_embed")) * self.width

    def hidden(self) -> float:
        """Elements of the hidden layer of the MLP [B, T, F], or of the experts [E, B, C, F]."""
        return self.activation((*(RECEIVED if self.model.experts else ("batch", "seq")), "mlp"))

    def scores(self) -> float:
        """Elements of attention [B, N, T, T]."""
        return self.activation(("batch", "heads", "seq")) * self.training.seq_len

    def gathered(self, weight: Weight) -> float:
        """Without the split over axes along which it is gathered for use, of all layers."""
        kept = [tuple(axis for axis in axes if axis not in self.gather_axes(weight)) for axes in weight.spec]
        return self.local(weight.array.shape, tuple(kept)) * self.width


def _dims(model: ModelConfig, batch: int, seq: int) -> Mapping[str, int]:
    return {
        "batch": batch,
        "seq": seq,
        "keys": seq,
        "activation_embed": model.embed,
        "heads": model.heads,
        "head_dim": model.head_dim,
        "mlp": model.mlp,
        "vocab": model.vocab_rows,
        "experts": model.experts,
        "router": model.experts,
        "expert_batch": batch,
        "capacity": model.capacity(seq) if model.experts else 0,
    }


def spec_of(decision: Decision) -> Spec:
    return tuple(dim.axes for dim in decision.dims)


def axes_of(spec: Spec) -> set[str]:
    return {axis for axes in spec for axis in axes}
