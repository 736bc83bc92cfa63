"""Explains the train step of a preset: its arrays by name, down to the rules that split them."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import msgspec
from jax.stages import Traced

from ..base.advice import first_line
from ..base.user_error import UserError
from ..models.task import gradient_name
from ..parallel.observed import Observed
from ..parallel.rules import Decision
from ..program.inspection import inspect_program, inspections
from ..program.placement import Placement, place
from ..program.program import compile_program, trace_step
from ..program.setup import devices_and_task, simulated_devices_and_task
from ..spec.config import RunConfig
from ..spec.preset_reader import load_preset
from ..wire.events import Inspection
from .chains import Reason, Reasons
from .compiled import rematerialized
from .explain import explain
from .explanation import CompiledProgram, Explained, Explanation, StepRequest, differences
from .names import kept_names
from .programs import NOT_ELSEWHERE

LOWERED_FOR = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""jax's platform for lowering, by that of devices."""


def explain_step(step: StepRequest) -> Iterator[Explanation]:
    """Yields the explanation of a step, then the one with the rules to try, if any. Raises UserError."""
    devices, task = (simulated_devices_and_task if step.is_simulated else devices_and_task)(step.config)
    preset = load_preset(step.config.preset)
    if unknown := sorted({axis for axes in step.rules.values() for axis in axes} - set(preset.mesh)):
        known = ", ".join(preset.mesh)
        raise UserError(f"--try: {', '.join(unknown)}: not an axis of the mesh of {preset.name}: choose from {known}")
    placements = [place(task, preset, devices)]
    if step.rules:
        tried = {logical: (tuple(axes),) for logical, axes in step.rules.items()}
        changed = msgspec.structs.replace(preset, rules={**preset.rules, **tried})
        placements.append(place(task, changed, devices))
    for placement in placements:
        found = explained(placement)
        yield _with_compiled(placement, found) if step.compiles else found


def inspect_explained(config: RunConfig) -> Iterator[Inspection | Explained]:
    """Yields the inspection of the preset of `config`, then its explanation. Raises UserError."""
    for placement, inspection in inspections(config):
        yield inspection
        try:
            yield Explained(explanation=explained(placement))
        except UserError as error:
            yield Explained(problem=error.problems[0])


def explained(placement: Placement) -> Explanation:
    return explain(*lowered(placement), with_results=False)


def lowered(placement: Placement) -> tuple[Any, str, list[str], Reasons]:
    """Lowers the step. Returns the arguments of `explain`."""
    observed = Observed(names_only=True)
    with kept_names():
        traced = trace_step(placement, observed)
        module = lowered_step(placement, traced)
    names = [array.names[0] for array in placement.task.arrays]
    return module, placement.preset.name, names, _reasons(placement, observed)


def lowered_step(placement: Placement, traced: Traced) -> Any:
    """Returns the module of a step for the task's platform. Raises UserError if it is for no other devices than here,
    as what calls back to Python is."""
    platform = placement.task.platform
    is_simulated = placement.platform != platform
    platforms = (LOWERED_FOR[platform],) if is_simulated else None
    try:
        return traced.lower(lowering_platforms=platforms).compiler_ir("stablehlo")
    except NOT_ELSEWHERE as error:
        if not is_simulated:
            raise
        raise UserError(
            f"the step cannot be lowered for a {platform} that is not here: {first_line(str(error))}: leave out "
            "what calls back to Python, such as jax.debug.print"
        ) from error


def _reasons(placement: Placement, observed: Observed) -> Reasons:
    decisions: list[Decision] = jax.tree.leaves((placement.state, placement.batch))
    found: dict[str, Reason] = {}
    for array, decision in zip(placement.task.arrays, decisions, strict=True):
        found[array.names[0]] = _rules(array.logical_axes, decision)
        found[gradient_name(array.names[0])] = found[array.names[0]]
    for name, activation in observed.activations.items():
        found[name] = _rules(activation.logical_axes, activation.decision)
    return found


def _rules(logical_axes: Sequence[str | None], decision: Decision) -> Reason:
    axes = {
        axis: f"rule {logical} → {' × '.join(dim.axes)}"
        if logical and dim.reason.startswith(f"{logical}: rule")
        else dim.reason
        for logical, dim in zip(logical_axes, decision.dims, strict=True)
        for axis in dim.axes
    }
    return Reason(axes, {index: dim.reason for index, dim in enumerate(decision.dims) if not dim.axes})


def _with_compiled(placement: Placement, found: Explanation) -> Explanation:
    program, inspected = compile_program(placement).description, inspect_program(placement)
    layouts = {array.name: array.compiled_spec for array in (*program.arrays, *inspected.arrays)}
    values = [
        msgspec.structs.replace(value, compiled_axes=layout)
        if (layout := layouts.get(value.name)) and len(layout) == len(value.shape)
        else value
        for value in found.values
    ]
    memory = program.memory
    compiled = CompiledProgram(
        collectives=program.collectives,
        differs=differences(found.collectives, program.collectives),
        rematerializations=[rematerialized(each, found) for each in inspected.rematerializations],
        argument_bytes=memory.arguments if memory else 0,
        output_bytes=memory.outputs if memory else 0,
        temporary_bytes=memory.temporaries if memory else 0,
    )
    return msgspec.structs.replace(found, values=values, compiled=compiled)
