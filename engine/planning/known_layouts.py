"""Which layouts the formulas cover. For all others the compiler's choices are not modelled, so there is no estimate."""

from collections.abc import Iterator, Sequence

import jax

from ..spec.model_config import ModelConfig
from ..spec.preset import OF_SOME_PARAMETERS
from .step_layout import StepLayout
from .weight import TENSOR_PARALLEL, Spec, split_axes

UNSPLIT = ("activation_embed", "keys", "head_dim", "qkv", "positions")
UNSPLIT_OF_EXPERTS = ("router", "expert_batch", "capacity")
"""Logical axes of a mixture of experts that must not be split by rules of their own: they follow from others."""
FIRST_UNKNOWN_JAX = (0, 12)
"""From this version on, jax's CPU compiler saves some bfloat16 activations as bfloat16 (measured)."""


def why_unknown(step: StepLayout) -> str:
    return next(_reasons(step), "")


def _reasons(step: StepLayout) -> Iterator[str]:
    tokens, optimizer = {*step.batch_axes, *step.seq_axes}, step.training.optimizer
    if step.on_cpu and (found := differences(step.model)):
        yield f"no formula for the memory of {', '.join(found)} on CPU"
    if optimizer in ("adafactor", "muon"):
        yield f"no formula for what {optimizer} holds and sends to update split parameters"
    if step.on_cpu and step.kept:
        yield f"no formula for what remat {step.model.remat} keeps and recomputes on CPU"
    for name in OF_SOME_PARAMETERS.keys() & step.preset.rules.keys():
        yield f"no formula for rules of some parameters, such as {name}"
    for name in step.preset.alternatives:
        yield f"no formula for rules with alternatives, such as that for {name}"
    if step.on_cpu and step.is_bfloat16 and jax.__version_info__ >= FIRST_UNKNOWN_JAX:
        yield f"bfloat16 on CPU: jax {jax.__version__} saves other activations than jax 0.10"
    for name in (*UNSPLIT, *(UNSPLIT_OF_EXPERTS if step.model.experts else ())):
        if axes := split_axes(step.preset.rules.get(name, ()), step.mesh):
            yield f"{name} is split over {_listed(axes)}"
    if apart := [axis for axis in step.rules.get("embed", ()) if axis not in tokens]:
        yield f"embed is split over {_listed(apart)}, which does not split the tokens"
    saved = step.rules["saved_embed"] if step.model.remat else ()
    if saved and saved != step.rules.get("heads", ()):
        yield f"saved_embed is split over {_listed(saved)}, unlike heads"
    for name in TENSOR_PARALLEL:
        axes = step.rules.get(name, ())
        if shared := [axis for axis in axes if axis in step.seq_axes]:
            yield f"{name} and seq are both split over {_listed(shared)}"
        elif tokens & set(axes) and not set(axes) <= tokens:
            yield f"{name} is split over {_listed(axes)}, only some of which split the tokens"
    if not step.pipeline and (axes := step.rules.get("layers", ())):
        yield f"layers are split over {_listed(axes)}, but not into pipeline stages"
    if step.model.experts:
        yield from _expert_reasons(step)
    if step.model.is_grouped and step.rules["kv_heads"] != step.rules.get("heads", ()):
        yield "kv_heads is split unlike heads"
    for weight in step.weights:
        if _differ(step, weight.spec, step.spec_of(weight.array.shape, weight.array.logical_axes)):
            yield f"[overrides] split {weight.name} differently from the matmul that uses it"
        if any(_differ(step, spec, weight.spec) for spec in weight.moments):
            yield f"[overrides] split {weight.name} and its moments differently"
    yield from _idle_axes(step)


def _idle_axes(step: StepLayout) -> Iterator[str]:
    """A kernel that is all-gathered over n devices, in a product that n or more devices repeat: the partitioner splits
    the kernel over these first (measured on CPU and TPU)."""
    for weight in step.weights if not step.pipeline else ():
        gathered = step.gather_axes(weight) if weight.is_kernel else ()
        busy = {*step.batch_axes, *step.seq_axes, *weight.axes}
        idle = [axis for axis, size in step.mesh.items() if size > 1 and axis not in busy]
        if gathered and step.shard_count(idle) >= step.shard_count(gathered):
            yield (
                f"{weight.name} is all-gathered over {_listed(gathered)}, in a product that {_listed(idle)} does not "
                "split"
            )


def differences(model: ModelConfig) -> list[str]:
    """Returns what a family does differently from GPT-2 for which the CPU's compiler keeps other temporaries."""
    found = {
        "RMSNorm": model.norm == "rms",
        "norms after branches": model.norm_places != "pre",
        "rotary positions": model.rope is not None,
        "grouped heads": model.is_grouped,
        "heads of another width": model.heads * model.head_dim != model.embed,
        "windows": model.window > 0,
        "capped scores or logits": bool(model.score_cap or model.logit_cap),
        "gated MLPs": model.is_gated,
        "an output table": not model.tied,
        "experts without a capacity": bool(model.experts) and not model.capacity_factor,
    }
    return [name for name, differs in found.items() if differs]


def _expert_reasons(step: StepLayout) -> Iterator[str]:
    parts, is_split = step.shard_count(step.seq_axes), bool(step.seq_axes)
    if step.model.capacity_factor and step.slots % parts:
        yield f"an expert's {step.slots} slots are not divisible by the {parts} shards of the sequence"
    if step.on_cpu and is_split:
        yield "no formula for the memory of experts with a split sequence on CPU"
    if step.on_cpu and step.model.remat:
        yield "no formula for the memory of experts with remat on CPU"


def _differ(step: StepLayout, one: Spec, other: Spec) -> bool:
    return one != other and _split_for_use(step, one) != _split_for_use(step, other)


def _split_for_use(step: StepLayout, spec: Spec) -> list[list[str]]:
    """Returns a spec without the axes that split tokens: over those, parameters and moments are gathered for use."""
    tokens = {*step.batch_axes, *step.seq_axes} - set(step.rules.get("experts", ()))
    return [[axis for axis in axes if axis not in tokens] for axes in spec]


def _listed(axes: Sequence[str]) -> str:
    return " and ".join(axes)
