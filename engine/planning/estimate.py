"""Estimates the memory, traffic and time of a step under a preset from its trace, with no compiler and no device."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
from msgspec.structs import replace

from ..base.advice import problems_in
from ..base.output import note_traceback
from ..base.user_error import UserError
from ..hlo.finding import Finding
from ..hlo.operation_findings import over_dcn
from ..hlo.step_cost import StepCost
from ..models.task import Task
from ..parallel.mesh import describe_mesh
from ..program.placement import DoesNotDivide, decide_all, place
from ..spec.preset import Preset
from ..spec.preset_reader import parse_preset
from ..spec.topology import Topology, crossing, wiring
from ..wire.commands import PreviewPreset
from ..wire.descriptions import Preview
from ..wire.events import PresetPreviewed
from .ranking import Row
from .step_trace import traced_cost


def layout_row(task: Task, preset: Preset, devices: int, topology: Topology | None) -> Row:
    """Returns the row of a preset without costs, with `problems` if it does not fit the model or the devices."""
    mesh = preset.sizes(devices)
    try:
        decide_all(task, preset, devices)
        axes = crossing(mesh, topology.domains if topology else 1)
    except UserError as error:
        indivisible = error.dims if isinstance(error, DoesNotDivide) else []
        return Row(preset=preset.name, mesh=mesh, problems=list(error.problems), indivisible=indivisible)
    return Row(
        preset=preset.name,
        mesh=mesh,
        wiring=[wiring(topology, mesh, [axis]) for axis in mesh] if topology else [],
        tokens=task.tokens_per_step,
        counted=task.counted,
        pipeline=preset.pipeline(devices, task.config.training.batch_size),
        laid_out=True,
        findings=_over_dcn(preset, axes, None),
    )


def estimate_row(
    task: Task, preset: Preset, devices: int, topology: Topology | None, simulated: Sequence[jax.Device] = ()
) -> Row:
    """Returns the row of a preset with the cost of its step; without a `topology` the chip is unknown, so there are no
    times. `simulated`: devices to trace on, of which a few do; default: the process's CPU devices."""
    here = simulated or jax.devices("cpu")
    return with_cost(task, preset, devices, topology, lambda: traced_cost(task, preset, devices, topology, here))


def with_cost(
    task: Task, preset: Preset, devices: int, topology: Topology | None, cost_of: Callable[[], StepCost]
) -> Row:
    """Returns the row of a preset with the cost that `cost_of` returns, if it fits. `cost_of` may raise UserError."""
    row = layout_row(task, preset, devices, topology)
    if row.problems:
        return row
    try:
        cost = cost_of()
    except UserError as error:
        return replace(row, no_estimate="; ".join(error.problems))
    axes = crossing(row.mesh, topology.domains if topology else 1)
    return replace(row, estimate=cost, findings=_over_dcn(preset, axes, cost))


def _over_dcn(preset: Preset, axes: Sequence[str], estimate: StepCost | None) -> list[Finding]:
    flows = [flow for flow in (estimate and estimate.collectives) or () if flow.network in ("dcn", "network")]
    moved = {axis: sum(flow.bytes_sent for flow in flows if axis in flow.axes) for axis in axes}
    split = {axis: {logical for logical in preset.rules if axis in preset.axes(logical)} for axis in axes}
    return list(over_dcn(split, moved))


def preview(task: Task, devices: Sequence[jax.Device], question: PreviewPreset) -> Iterator[PresetPreviewed]:
    """Yields previews of an edited preset, before and after the edit: its layout, then also the cost of a step. Safe in
    any thread while training runs. Never raises: errors become `problems`."""
    for traces in (False, True):
        before, after = (
            _preview(task, devices, question.preset, text, traces) for text in (question.before, question.after)
        )
        yield PresetPreviewed(number=question.number, before=before, after=after)


def _preview(task: Task, devices: Sequence[jax.Device], name: str, text: str, traces: bool) -> Preview:
    try:
        preset = parse_preset(Path(f"{name}.toml"), text)
        placement = place(task, preset, devices)
        row = estimate_row(task, preset, len(devices), None, devices) if traces else None
    except UserError as error:
        return Preview(problems=list(error.problems))
    except BaseException as error:  # a viewer waits for the answer
        note_traceback(error)
        return Preview(problems=problems_in(error))
    arrays = placement.describe_all((placement.state_shardings, placement.batch_shardings))
    cost = row and row.estimate
    return Preview(
        problems=[],
        mesh=describe_mesh(placement.mesh),
        arrays=arrays,
        argument_bytes=placement.argument_bytes,
        no_estimate=row.no_estimate if row else "",
        peak_bytes=cost.peak_bytes if cost else None,
        sent_bytes=cost.sent_by_axis if cost else {},
    )
