"""How evenly tokens are spread over experts: figures of each layer, and of the devices that hold the experts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...engine.base import formatting
from ...engine.wire.descriptions import ArrayInfo
from ...engine.wire.number_events import ExpertNumbers
from ...engine.wire.step_breakdown import StepBreakdown
from ..terminal.plain_table import Column, figure
from .bottleneck import flow_times
from .run_state import RunState

EXPERTS = "experts"
"""The logical axis of the experts."""


@dataclass(frozen=True)
class LayerLoad:
    """The load of the experts of one layer."""

    layer: int
    load: Sequence[float]
    """Tokens of each expert ÷ their fair share."""
    dropped: float | None
    """Share of tokens × choices without a place in their expert; None without a capacity."""
    logits_max: float
    """Largest magnitude of the router's logits."""

    @property
    def variation(self) -> float:
        """Coefficient of variation: standard deviation ÷ mean of the loads; 0 if they are even."""
        mean = sum(self.load) / len(self.load)
        variance = sum((load - mean) ** 2 for load in self.load) / len(self.load)
        return math.sqrt(variance) / mean if mean else 0.0

    @property
    def used(self) -> float:
        """Share of the experts that as many even ones would be: exp(entropy) ÷ number; 1 if the loads are even."""
        total = sum(self.load)
        shares = [load / total for load in self.load if load]
        return math.exp(-sum(share * math.log(share) for share in shares)) / len(self.load) if shares else 0.0

    @property
    def dead(self) -> int:
        """Experts that got no token."""
        return sum(not load for load in self.load)

    @property
    def busiest(self) -> int:
        """The expert with the most tokens."""
        return max(range(len(self.load)), key=self.load.__getitem__)


def layer_loads(experts: ExpertNumbers) -> list[LayerLoad]:
    dropped = experts.dropped or [None] * len(experts.load)
    layers = zip(experts.load, dropped, experts.logits_max, strict=True)
    return [LayerLoad(layer, *values) for layer, values in enumerate(layers) if values[0]]


LOADS: Sequence[Column[LayerLoad]] = (
    figure("layer", lambda each: each.layer),
    figure("variation", lambda each: each.variation, formatting.number),
    figure("effective", lambda each: each.used, formatting.percent),
    figure("dead", lambda each: each.dead),
    Column(
        "most loaded",
        lambda each: f"{formatting.number(max(each.load))} (expert {each.busiest})",
        is_figure=True,
        value=lambda each: max(each.load),
    ),
    figure("dropped", lambda each: each.dropped, formatting.percent, unknown="–"),
    figure("max logit", lambda each: each.logits_max, formatting.number),
)
"""Of the load of a layer's experts."""


def part_words(experts: ExpertNumbers, axes: Sequence[str]) -> str:
    """Says how much more than the mean the most loaded part of the devices computes, over all layers; empty if every
    device has all experts. `axes`: the mesh axes that split the experts; empty if they are not known."""
    parts = part_loads(experts)
    if len(parts) < 2:
        return ""
    at = max(range(len(parts)), key=parts.__getitem__)
    name = f"`{formatting.over(axes)}`" if axes else "device"
    return f"{name} part {at + 1} of {len(parts)} does {parts[at]:.2f} × the mean"


def wait_words(state: RunState, breakdown: StepBreakdown, preset: str) -> str:
    """Says how much more than the mean the most loaded part of the devices computes, and how long collectives over the
    axes of the experts wait for it; empty without a measurement under that preset, or if each device has all."""
    newest = state.numbers.newest
    if newest is None or newest.experts is None or newest.preset != preset:
        return ""
    axes = expert_axes(state.arrays_of(preset))
    flows = [flow for flow in flow_times(breakdown) if not set(axes).isdisjoint(flow.axes)]
    if not (words := part_words(newest.experts, axes)) or not flows:
        return words
    waiting = sum(flow.waiting_seconds for flow in flows)
    share = formatting.percent(waiting / breakdown.step_seconds)
    return (
        f"{words} of the experts' tokens: collectives over it wait {formatting.seconds(waiting)}, {share} of the step."
    )


def part_loads(experts: ExpertNumbers) -> list[float]:
    """Returns the tokens of the experts in each part ÷ the mean of the parts, over all layers."""
    sums = [0.0] * experts.device_parts
    for load in experts.load:
        for expert, value in enumerate(load):
            sums[expert * len(sums) // len(load)] += value
    mean = sum(sums) / len(sums)
    return [value / mean for value in sums] if mean else sums


def expert_axes(arrays: Iterable[ArrayInfo]) -> list[str]:
    """Returns the mesh axes over which the arrays of experts are split."""
    for array in arrays:
        if EXPERTS in array.logical_axes:
            return array.compiled_spec[array.logical_axes.index(EXPERTS)]
    return []
