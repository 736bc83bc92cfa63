"""Estimates the memory, traffic and compute of a step under a preset by formula, with no compiler and no device.

The formulas follow the source of the step (decoder.py, task.py). Where the compiler deviates, the compiled program's
figure is shown next to the estimate. Layouts that they do not cover, and a user's model, are estimated from the trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import jax
from msgspec.structs import replace

from ..base.advice import problems_in
from ..base.output import note_traceback
from ..base.user_error import UserError
from ..hlo.finding import Finding
from ..hlo.operation_findings import over_dcn
from ..hlo.traffic import Flow
from ..models.task import Task
from ..parallel.mesh import describe_mesh
from ..program.placement import DoesNotDivide, argument_bytes, decide_all, place
from ..spec.config import UserModel
from ..spec.preset import Preset
from ..spec.preset_reader import parse_preset
from ..spec.topology import Topology, crossing, wiring
from ..wire.commands import PreviewPreset
from ..wire.descriptions import Preview
from ..wire.events import PresetPreviewed
from .known_layouts import why_unknown
from .networks import by_network
from .ranking import Row, StepCost, Wanted, Work, timed
from .step_compute import StepCompute
from .step_layout import StepLayout
from .step_memory import StepMemory
from .step_trace import StepTrace
from .step_traffic import StepTraffic

KEPT_STEPS = 16
"""Layouts that are kept: a search tries the orders of a mesh one after the other, which differ only in their links."""
USER_MODEL = "no formula for a user's model: `plan --topology` estimates it from its trace"


def estimate_row(task: Task, preset: Preset, devices: int, topology: Topology | None, wanted: Wanted = "rough") -> Row:
    """Returns the estimate of one preset; without a `topology` the chip is unknown, so there are no times and no trace.
    A preset that does not fit the model or the devices gives a row with `problems` instead. A user's model is always
    traced. Traces need as many simulated devices as the `topology` has."""
    mesh = preset.sizes(devices)
    is_users = isinstance(task.config.model, UserModel)
    step, domains = None, topology.domains if topology else 1
    try:
        if is_users:
            decide_all(task, preset, devices)
        else:
            step = _step(task, Layout(preset, devices))
        axes = crossing(mesh, domains)
    except UserError as error:
        indivisible = error.dims if isinstance(error, DoesNotDivide) else []
        return Row(preset=preset.name, mesh=mesh, problems=list(error.problems), indivisible=indivisible)
    row = Row(
        preset=preset.name,
        mesh=mesh,
        wiring=[wiring(topology, mesh, [axis]) for axis in mesh] if topology else [],
        tokens=task.config.training.tokens_per_step,
        pipeline=step.layout.pipeline if step else None,
        laid_out=True,
        no_estimate=step.unknown if step else USER_MODEL,
    )
    is_known = step is not None and not step.unknown
    if topology and (is_users or wanted == "traced" or (wanted == "known" and not is_known)):
        row = _traced(row, task, preset, topology, step.work.flops if step else None)
    if row.estimate is None and step and is_known:
        row = replace(row, estimate=step.cost(topology, mesh), no_estimate="")
    return replace(row, findings=_over_dcn(preset, axes, row.estimate))


def _over_dcn(preset: Preset, axes: Sequence[str], estimate: StepCost | None) -> list[Finding]:
    flows = [flow for flow in (estimate and estimate.collectives) or () if flow.network in ("dcn", "network")]
    moved = {axis: sum(flow.bytes_sent for flow in flows if axis in flow.axes) for axis in axes}
    split = {axis: {logical for logical, by in preset.rules.items() if axis in by} for axis in axes}
    return list(over_dcn(split, moved))


def _traced(row: Row, task: Task, preset: Preset, topology: Topology, flops: float | None) -> Row:
    """`flops`: by formula, which has those of kernels."""
    if len(simulated := jax.devices("cpu")) < topology.devices:
        return replace(row, no_estimate=f"the trace needs {topology.devices} simulated devices, {len(simulated)} found")
    try:
        cost = StepTrace(task, preset, simulated[: topology.devices]).cost(topology, flops)
    except UserError as error:
        return replace(row, no_estimate="; ".join(error.problems))
    return replace(row, estimate=cost, no_estimate="")


@dataclass(frozen=True, eq=False)
class Layout:
    """A preset on some devices. Equal if the same step is laid out alike, in whatever order the mesh axes are, and the
    files have the same problems: a rule with one is left out."""

    preset: Preset
    devices: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._decisive == other._decisive

    @property
    def _decisive(self) -> tuple[object, ...]:
        return self.preset.layout, self.preset.problems, self.devices

    def __hash__(self) -> int:
        return hash((frozenset(self.preset.mesh.items()), self.devices))


@lru_cache(maxsize=KEPT_STEPS)
def _step(task: Task, layout: Layout) -> "Step":
    return Step(task, layout.preset, layout.devices)


class Step:
    """One training step of a task under a preset. Sizes are bytes per device."""

    def __init__(self, task: Task, preset: Preset, devices: int) -> None:
        """`task`: trains the built-in model. Raises UserError if the preset cannot be laid out."""
        self.micro_batches = task.config.training.accumulate_steps
        """Micro-batches over which gradients are accumulated: `layout` describes one."""
        if self.micro_batches > 1:
            decide_all(task, preset, devices)
            task = micro_task(task, self.micro_batches)
        self.layout = StepLayout(task, preset, devices)
        self.memory = StepMemory(self.layout)
        self.unknown = why_unknown(self.layout)
        """Why the formulas, except for the arguments, do not cover this layout; empty if all hold."""
        if self.micro_batches > 1 and self.layout.on_cpu:
            self.unknown = f"no formula for gradients accumulated over {self.micro_batches} micro-batches on CPU"

    @property
    def argument_bytes(self) -> int:
        return self.memory.argument_bytes + (self.micro_batches - 1) * self.memory.parts.get("batch", 0)

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes per device at the peak by what they hold, the largest first. Accumulated gradients are float32 and laid
        out like the parameters, whose gradients by one micro-batch are there as well."""
        found = dict(self.memory.parts)
        if self.micro_batches > 1:
            found["batch"] = self.micro_batches * found.get("batch", 0)
            found["accumulated gradients"] = found["parameters"]
        return dict(sorted(found.items(), key=lambda part: -part[1]))

    @cached_property
    def flows(self) -> list[Flow]:
        """Collectives of a step by kind and axes, those with most bytes first: each micro-batch has its own."""
        return [_times(flow, self.micro_batches) for flow in StepTraffic(self.layout).flows]

    @cached_property
    def work(self) -> Work:
        one = StepCompute(self.layout, self.memory.argument_bytes).work
        names = ("flops", "memory_bytes", "model_flops", "tokens")
        return replace(one, **{name: getattr(one, name) * self.micro_batches for name in names})

    def cost(self, topology: Topology | None, mesh: Mapping[str, int]) -> StepCost:
        """Returns the estimated cost of a step, with times and capacity if the `topology` is known, over which the axes
        of the mesh are laid in this order."""
        flows = [replace(flow, axes=[axis for axis in mesh if axis in flow.axes]) for flow in self.flows]
        cost = StepCost(
            argument_bytes=self.argument_bytes,
            peak_bytes=sum(self.parts.values()),
            parts=self.parts,
            capacity_bytes=topology.chip.memory if topology else None,
            collectives=by_network(flows, mesh, topology) if topology else flows,
        )
        return timed(cost, self.work, topology, mesh) if topology else cost


def micro_task(task: Task, count: int) -> Task:
    training = task.config.training
    one = replace(training, batch_size=training.batch_size // count, accumulate_steps=1)
    return task.with_config(replace(task.config, training=one))


def _times(flow: Flow, count: int) -> Flow:
    if count == 1:
        return flow
    names = ("count", "bytes_per_device", "bytes_known", "bytes_sent")
    return replace(flow, **{name: count * (getattr(flow, name) or 0) for name in names})


def preview(task: Task, devices: Sequence[jax.Device], question: PreviewPreset) -> PresetPreviewed:
    """Returns previews of an edited preset, before and after the edit: its layout and the cost of a step. Safe in any
    thread while training runs. Never raises: errors become `problems`."""
    before, after = (_preview(task, devices, question.preset, text) for text in (question.before, question.after))
    return PresetPreviewed(number=question.number, before=before, after=after)


def _preview(task: Task, devices: Sequence[jax.Device], name: str, text: str) -> Preview:
    try:
        preset = parse_preset(Path(f"{name}.toml"), text)
        placement = place(task, preset, devices)
        row = estimate_row(task, preset, len(devices), None)
    except UserError as error:
        return Preview(problems=list(error.problems))
    except BaseException as error:  # a viewer waits for the answer
        note_traceback(error)
        return Preview(problems=problems_in(error))
    arrays = placement.describe_all(task, (placement.state_shardings, placement.batch_shardings))
    cost = row.estimate
    return Preview(
        problems=[],
        mesh=describe_mesh(placement.mesh),
        arrays=arrays,
        argument_bytes=argument_bytes(task, placement),
        no_estimate=row.no_estimate,
        peak_bytes=cost.peak_bytes if cost else None,
        sent_bytes=cost.sent_by_axis if cost else {},
    )
