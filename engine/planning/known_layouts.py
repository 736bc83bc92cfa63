"""Which layouts the formulas of a step know. Elsewhere the compiler decides what no formula follows: they give none."""

from collections.abc import Iterator

import jax

from ..parallel.rules import by_rules
from ..spec.preset import Axes
from .step_layout import Spec, StepLayout, Weight, spec_of

WHOLE = ("activation_embed", "keys", "head_dim", "qkv", "positions")
"""Dims that the formulas know whole."""
WHOLE_OF_EXPERTS = ("router", "expert_batch", "capacity")
"""Likewise, but where they follow from other rules."""
SPLIT = ("heads", "mlp", "vocab")
NEWER = (0, 12)
"""From this version of jax on its CPU compiler saves part of what is bfloat16 as such: measured."""


def why_unknown(step: StepLayout) -> str:
    """What of a layout no formula follows; empty where they all hold."""
    return next((why for why in _whys(step)), "")


def _whys(step: StepLayout) -> Iterator[str]:
    tokens = {*step.batch_axes, *step.seq_axes}
    if step.on_cpu and step.is_narrow and jax.__version_info__ >= NEWER:
        yield f"bfloat16 on CPU, of which jax {jax.__version__} saves other parts than jax 0.10"
    for name in (*WHOLE, *(WHOLE_OF_EXPERTS if step.model.experts else ())):
        if axes := _split(step, step.preset.rules.get(name, ())):
            yield f"{name} is split over {_listed(axes)}"
    if apart := [axis for axis in _split(step, step.rules.get("embed", ())) if axis not in tokens]:
        yield f"embed is split over {_listed(apart)}, which splits no tokens"
    for name in SPLIT:
        axes = _split(step, step.rules.get(name, ()))
        if shared := [axis for axis in axes if axis in _split(step, step.seq_axes)]:
            yield f"{name} and seq are both split over {_listed(shared)}"
        elif tokens & set(axes) and not set(axes) <= tokens:
            yield f"{name} is split over {_listed(axes)}, which splits tokens in part"
    if not step.pipeline and (axes := _split(step, step.rules.get("layers", ()))):
        yield f"layers are split over {_listed(axes)}, but are no stages"
    if step.model.experts:
        yield from _whys_of_experts(step)
    for weight in step.weights:
        if _beside(step, weight.spec) != _beside(step, _by_rules(step, weight)):
            yield f"[overrides] split {weight.name} otherwise than the product that it is used in"
        if any(_beside(step, spec) != _beside(step, weight.spec) for spec in weight.moments):
            yield f"[overrides] split moments of {weight.name} otherwise than itself"


def _whys_of_experts(step: StepLayout) -> Iterator[str]:
    parts, is_split = step.count(step.seq_axes), bool(_split(step, step.seq_axes))
    if step.slots % parts:
        yield f"the {step.slots} slots of an expert do not divide by the {parts} parts of a sequence"
    if step.on_cpu and is_split:
        yield "the sequence is split before experts, whose memory on CPU was not followed so far"
    if step.on_cpu and step.model.remat:
        yield "experts are computed again, whose memory on CPU was not followed so far"


def _split(step: StepLayout, axes: Axes) -> list[str]:
    """Those of more than one device."""
    return [axis for axis in axes if step.mesh[axis] > 1]


def _beside(step: StepLayout, spec: Spec) -> list[list[str]]:
    """Without the axes of the tokens: over these, parameters and moments are gathered."""
    tokens = {*step.batch_axes, *step.seq_axes} - set(step.rules.get("experts", ()))
    return [[axis for axis in _split(step, axes) if axis not in tokens] for axes in spec]


def _by_rules(step: StepLayout, weight: Weight) -> Spec:
    return spec_of(by_rules(weight.array.shape, weight.array.logical_axes, step.rules, step.mesh))


def _listed(axes: list[str]) -> str:
    return " and ".join(axes)
