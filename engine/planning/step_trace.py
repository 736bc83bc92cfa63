"""Memory, traffic and work of a device in a step, from its trace on a small mesh. Compiles nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import jax
from jax.stages import Traced
from msgspec.structs import replace

from ..base.encoding import encode_json
from ..base.user_error import UserError
from ..explain.attributes import last_of
from ..explain.explanation import UNKNOWN
from ..explain.graph import Graph
from ..explain.live_memory import LiveMemory
from ..explain.live_peak import live_peak
from ..explain.partitioned import Partitioned, partition
from ..explain.reductions import reductions_on
from ..explain.resized import Batch, resized
from ..explain.step import lowered_step
from ..explain.transfers import Transfer, moving, read_transfers
from ..explain.work import Products
from ..hlo.step_cost import StepCost, Work, timed
from ..hlo.traffic import flows
from ..models.flops import kernel_flops
from ..models.task import Task
from ..program.placement import argument_parts, decide_all, place
from ..program.program import trace_step
from ..spec.config import UserModel
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire.collective import CollectiveInfo
from .networks import by_network

KEPT = 12
"""Traces that are kept: presets that differ in the sizes of their mesh axes alone share one."""
PRIMES = (31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
"""Sequences per shard in a trace: one that divides no other dim marks the values that grow with the batch."""


class StepTrace:
    """A step traced on a mesh with the same axes as a preset's, of two devices each where its sizes do not matter to
    the program. Sizes are bytes per device; docs/planning-measured.md has their errors."""

    def __init__(self, task: Task, preset: Preset, devices: Sequence[jax.Device], batch_prime: int | None) -> None:
        self._task, self._placement = task, place(task, preset, devices)
        self._prime = batch_prime or max(PRIMES)

    @cached_property
    def _traced(self) -> Traced:
        return trace_step(self._placement)

    @cached_property
    def _program(self) -> Partitioned:
        """The step as the partitioner's own passes leave it. Raises UserError if jaxlib lacks the passes, or the step
        is for no other devices than here."""
        return partition(lowered_step(self._placement, self._traced))

    @cached_property
    def _live(self) -> LiveMemory:
        return LiveMemory(self._program, self._task.platform)

    @cached_property
    def _products(self) -> Products:
        return Products(self._program, kernel_flops(self._traced.jaxpr), self._task.model.computed_scores)

    @cached_property
    def _moving(self) -> list[tuple[Any, int | None]]:
        return moving(self._program)

    def sized(self, task: Task, mesh: Mapping[str, int], topology: Topology | None) -> "SizedStep":
        """Returns the step on another mesh, in whatever order its axes are, with the batch of `task`."""
        growth = Fraction(task.config.training.batch_size, self._task.config.training.batch_size)
        sizes = {axis: mesh[axis] for axis in self._program.graph.mesh}
        program = resized(self._program, sizes, Batch(self._prime, growth))
        with program.module.context:
            return SizedStep(
                live=self._live.resized(program),
                flops=self._products.flops(program),
                sent=sent_by(program, topology, mesh, self._moving),
                result_bytes=result_bytes(program),
                model_flops=task.flops_per_step,
                tokens=task.tokens_per_step,
                names=[array.names[0] for array in task.arrays],
            )


@dataclass(frozen=True)
class SizedStep:
    """A step on a mesh, or a whole program."""

    live: LiveMemory
    flops: float
    """Of a device."""
    sent: list[CollectiveInfo]
    """Collectives of the compiler."""
    result_bytes: int
    model_flops: float
    """As in `Work`, and so are the tokens."""
    tokens: int
    names: Sequence[str]
    """Of its arguments."""

    def work(self, argument_bytes: int) -> Work:
        return Work(
            flops=self.flops,
            memory_bytes=float(argument_bytes + self.result_bytes + self.live.moved),
            model_flops=self.model_flops,
            tokens=self.tokens,
        )

    def cost(self, mesh: Mapping[str, int], arguments: Mapping[str, int], topology: Topology | None) -> StepCost:
        """Returns the cost, with times and capacity if the `topology` is known, over which the axes of the mesh lie in
        this order. `arguments`: bytes of the state and the batch by kind."""
        parts = {**arguments, "forward pass": 0, "backward pass": 0}
        for buffer in self.live.at_peak:
            parts["backward pass" if buffer.is_backward else "forward pass"] += buffer.bytes
        ordered = [replace(info, axes=[axis for axis in mesh if axis in info.axes]) for info in self.sent]
        cost = StepCost(
            basis="traced",
            argument_bytes=sum(arguments.values()),
            peak_bytes=sum(parts.values()),
            parts=dict(sorted(parts.items(), key=lambda part: -part[1])),
            capacity_bytes=topology.chip.memory if topology else None,
            collectives=by_network(ordered, mesh, topology) if topology else flows(ordered),
        )
        return timed(cost, self.work(cost.argument_bytes), topology, mesh) if topology else cost

    def with_peak(self, cost: StepCost) -> StepCost:
        """Returns the cost with the largest buffers at the peak."""
        with self.live.program.module.context:
            peak = live_peak(self.live, self.names)
        return replace(cost, at_peak=peak.memory, peak_buffers=peak.buffers)


def traced_cost(
    task: Task, preset: Preset, count: int, topology: Topology | None, devices: Sequence[jax.Device]
) -> StepCost:
    """Returns the cost of a step of a preset on `count` devices, traced on `devices`, of which a few do. Raises
    UserError if the preset does not fit, or they are too few."""
    held = arguments(task, preset, count)
    sized = traced_step(task, preset, count, topology, devices)
    return sized.with_peak(sized.cost(preset.sizes(count), held, topology))


def traced_work(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> Work:
    """Returns the work of a device in a step. Raises as `traced_cost` does."""
    count = len(devices)
    held = sum(arguments(task, preset, count).values())
    return traced_step(task, preset, count, None, devices).work(held)


def arguments(task: Task, preset: Preset, count: int) -> dict[str, int]:
    """Returns the bytes of the state and the batch by kind. Raises UserError if the preset does not fit."""
    return argument_parts(task, decide_all(task, preset, count), preset.sizes(count))


def traced_step(
    task: Task, preset: Preset, count: int, topology: Topology | None, devices: Sequence[jax.Device]
) -> SizedStep:
    """Returns the step of a preset that fits. Raises UserError if the devices are too few."""
    return _trace(task, preset, count, devices).sized(task, preset.sizes(count), topology)


_known: dict[bytes, StepTrace] = {}


def _trace(task: Task, preset: Preset, count: int, devices: Sequence[jax.Device]) -> StepTrace:
    small, batch_size, prime = _smaller(task, preset, count)
    config = replace(_with_batch(task, batch_size).config, preset="", run="")
    key = encode_json((config, task.platform, replace(small, name="", source="", summary="", teaches="")))
    if key not in _known:
        needed = math.prod(small.mesh.values())
        if needed > len(devices):
            raise UserError(f"the trace needs {needed} simulated devices, {len(devices)} found")
        while len(_known) >= KEPT:
            del _known[next(iter(_known))]
        _known[key] = StepTrace(Task(config, task.platform), small, devices[:needed], prime)
    return _known[key]


def _smaller(task: Task, preset: Preset, count: int) -> tuple[Preset, int, int | None]:
    """Returns the preset on the mesh to trace, the batch to trace, and the prime that marks it; None without one. Axes
    of stages and of the sequence keep their sizes, which the program depends on: the ticks of a pipeline, the hops of a
    ring. So do all where a dim is not even, or has alternatives. A user's model keeps its batch, on which its code may
    depend."""
    sizes, config = preset.sizes(count), task.config
    kept = {*sizes} if preset.with_alternatives else {*preset.stage_axes, *preset.axes("seq")}
    pipeline = preset.pipeline(count, config.training.batch_size)
    microbatches = pipeline.microbatches if pipeline else preset.microbatches
    mesh = {axis: size if axis in kept else min(size, 2) for axis, size in sorted(sizes.items())}
    small, devices = replace(preset, mesh=mesh, microbatches=microbatches), math.prod(mesh.values())
    batch_size, prime = config.training.batch_size, None
    if not isinstance(config.model, UserModel):
        dims = {size for array in task.arrays if array.kind != "batch" for size in array.shape}
        prime = next(each for each in PRIMES if all(size % each for size in {*dims, config.training.seq_len}))
        groups = (pipeline.microbatches if pipeline else 1) * config.training.accumulate_steps
        batch_size = prime * groups * small.parts("batch", devices)
    try:
        decide_all(_with_batch(task, batch_size), small, devices)
    except UserError:
        return replace(small, mesh=dict(sorted(sizes.items()))), config.training.batch_size, None
    return small, batch_size, prime


def _with_batch(task: Task, batch_size: int) -> Task:
    training = replace(task.config.training, batch_size=batch_size)
    return task if training == task.config.training else task.with_config(replace(task.config, training=training))


def sent_by(
    program: Partitioned, topology: Topology | None, mesh: Mapping[str, int], found: list[tuple[Any, int | None]]
) -> list[CollectiveInfo]:
    """Returns the collectives that a program has on a topology, whose devices fill `mesh` in this order; without one as
    the CPU's compiler makes them. `found`: its operations that move data. Raises UserError if the mesh does not fit."""
    reductions = reductions_on(topology, program, mesh) if topology else None
    transfers = read_transfers(program, reductions, found)
    known = (each for each in transfers if each.kind != UNKNOWN and program.graph.parts(each.axes) > 1)
    return [_info(each, program.graph) for each in known]


def result_bytes(program: Partitioned) -> int:
    return sum(program.bytes(value, program.layout(value)) for value in last_of(program.main).operands)


def _info(each: Transfer, graph: Graph) -> CollectiveInfo:
    split = [axis for axis in each.axes if graph.parts([axis]) > 1]  # jax 0.12 names axes of size 1, too
    return CollectiveInfo(
        kind=each.kind,
        axes=list(dict.fromkeys(axis.partition(":")[0] for axis in split)),  # of a part of an axis, the axis
        group_size=graph.parts(split),
        count=each.count,
        bytes_each=each.bytes_each,
        bytes_per_device=None if each.count is None else each.count * each.bytes_each,
        dtype="",
        shapes=[],
        op_name="",
        source=each.source,
        written=each.written,
    )
