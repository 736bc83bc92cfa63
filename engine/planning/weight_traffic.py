"""Collectives of a step's parameters and their gradients, by formula."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..spec.preset import Axes
from .step_layout import FLOAT32, StepLayout
from .weight import Weight, axes_of


@dataclass(frozen=True)
class Collective:
    """Collectives of a step that are alike."""

    kind: str
    axes: Axes
    bytes_each: float
    """Bytes per device of each one: of the gathered array for a gather, of the input for a scatter."""
    count: int


class WeightTraffic:
    """Formulas for the collectives of parameters: gathered where they are used, their gradients reduced."""

    def __init__(self, step: StepLayout) -> None:
        self.step = step

    def collectives(self) -> Iterator[Collective]:
        for weight in self.step.weights:
            yield from self._gathers(weight)
            yield from self._moment_gathers(weight)
            yield from self._reductions(weight)

    def _gathers(self, weight: Weight) -> Iterator[Collective]:
        """A parameter split over axes of the batch is all-gathered for the forward and for the backward pass
        (Rajbhandari et al. 2020, "ZeRO", section 7.2.2)."""
        axes = self.step.gather_axes(weight)
        if not axes:
            return
        one, times = self._each(weight)
        yield Collective("all-gather", axes, one, times * self._uses(weight))

    def _reductions(self, weight: Weight) -> Iterator[Collective]:
        """Gradients are summed over the axes that split the tokens: reduce-scattered over those that split the
        parameter, too, and all-reduced over the others."""
        gather = self.step.gather_axes(weight)
        one, times = self._each(weight)
        for axes in self._reduction_axes(weight):
            scatter = tuple(axis for axis in axes if axis in gather)
            yield Collective(self._scatter_kind(weight, scatter), scatter, one, times)
            for rest in (self.step.batch_axes, self.step.seq_axes) if self.step.on_cpu else (axes,):
                reduced = tuple(axis for axis in axes if axis in rest and axis not in weight.axes)
                yield Collective("all-reduce", reduced, one / self.step.shard_count(scatter), times)

    def _each(self, weight: Weight) -> tuple[float, int]:
        """Bytes of a parameter as gathered at a time, and how often per pass. The layers of a pipeline stage are
        gathered and reduced together, once per step and in float32 (pipeline.stack_stages)."""
        gathered = self.step.gathered_bytes(weight)
        if self.step.pipeline and weight.is_stacked:
            return gathered / self.step.itemsize * FLOAT32, 1
        return gathered / weight.layers, weight.layers

    def _uses(self, weight: Weight) -> int:
        """How many times per step a layer all-gathers a parameter: twice, and an embedding table once. With remat the
        kernels of query, key and value are gathered a third time, except on CPU: they are the first of the block when
        recomputed and the last when differentiated. Under explicit axis types without remat, parameters other than
        kernels are gathered once and kept, because the step asks for that."""
        remat = self.step.model.remat
        if self.step.pipeline and weight.is_stacked:
            return 1
        if weight.is_table or (self.step.is_explicit and not remat and not weight.is_kernel):
            return 1
        is_repeated = self.step.recomputes("qkv_proj") and weight.is_attention_input
        return 3 if is_repeated and not self.step.on_cpu else 2

    def _scatter_kind(self, weight: Weight, axes: Axes) -> str:
        """On a TPU, too, some gradients are all-reduced and then sliced: those over the whole slice (measured), and
        the gradient of a token table with two uses, as they are summed after the reduction."""
        step = self.step
        is_reduced = step.on_tpu and (step.is_slice(axes) or (weight.is_table and step.model.tied))
        return "all-reduce" if is_reduced else step.scatter_kind

    def _moment_gathers(self, weight: Weight) -> Iterator[Collective]:
        """Moments split over fewer axes than their parameter each all-gather the gradient in float32."""
        for spec in weight.moments:
            axes = tuple(axis for axis in self.step.mesh if axis in weight.axes - axes_of(spec))
            yield Collective("all-gather", axes, self.step.local_elements(weight.array.shape, spec) * FLOAT32, 1)

    def _reduction_axes(self, weight: Weight) -> list[Axes]:
        """The axes that split the tokens, by reduction: gradients are summed over them. The CPU's compiler reduces over
        the axes of the batch and of the sequence separately, except for kernels."""
        separately = self.step.on_cpu and not weight.is_kernel
        axes = (self.step.batch_axes, self.step.seq_axes)
        return list(axes) if separately else [axes[0] + axes[1]]
