"""Memory, traffic and compute of a step from its trace, for models that no formula covers. Compiles nothing."""

from collections.abc import Sequence
from functools import cached_property

import jax
from jax.stages import Traced

from ..explain.explanation import UNKNOWN
from ..explain.live_memory import LiveMemory, live_peak
from ..explain.partitioned import Partitioned, partition
from ..explain.reductions import Reductions
from ..explain.step import platforms
from ..explain.transfers import Transfer, read_transfers
from ..hlo.traffic import Flow, flows
from ..models.flops import flops_by_scope
from ..models.task import Task
from ..program.placement import argument_bytes, place
from ..program.program import trace_step
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire.descriptions import CollectiveInfo
from .networks import by_network
from .ranking import StepCost, Work, timed


class StepTrace:
    """A traced step under a preset. Sizes are bytes per device; docs/planning-measured.md has their errors."""

    def __init__(self, task: Task, preset: Preset, devices: Sequence[jax.Device]) -> None:
        """`devices`: as many as the slice has; simulated ones will do. Raises UserError if the preset does not fit."""
        self._task, self._placement = task, place(task, preset, devices)

    @cached_property
    def _traced(self) -> Traced:
        return trace_step(self._task, self._placement)

    @cached_property
    def _program(self) -> Partitioned:
        """The step as the partitioner's own passes leave it. Raises UserError if jaxlib lacks the passes."""
        return partition(
            self._traced.lower(lowering_platforms=platforms(self._task, self._placement)).compiler_ir("stablehlo")
        )

    @cached_property
    def _live(self) -> LiveMemory:
        with self._program.module.context:
            return LiveMemory(self._program, self._task.platform == "tpu")

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes at the peak by what they hold, the largest first. The arguments are exact, but for padding."""
        found = {"arguments": self.argument_bytes, "forward pass": 0, "backward pass": 0}
        for buffer in self._live.at_peak:
            found["backward pass" if buffer.is_backward else "forward pass"] += buffer.bytes
        return dict(sorted(found.items(), key=lambda part: -part[1]))

    @cached_property
    def argument_bytes(self) -> int:
        return argument_bytes(self._task, self._placement)

    def _flows(self, topology: Topology) -> list[Flow]:
        """Collectives of the compiler, those with most bytes first."""
        graph = self._program.graph
        reductions = Reductions(self._program, topology)
        with self._program.module.context:
            known = (each for each in read_transfers(self._program, reductions) if each.axes and each.kind != UNKNOWN)
            return flows([_info(each, graph.parts(each.axes)) for each in known])

    def work(self, flops: float | None = None) -> Work:
        """FLOPs of the matrix products in the jaxpr, if the devices share all of them, unless `flops` are known, and
        the bytes that operations read and write, with the state, which is updated once."""
        counted = flops_by_scope(self._traced.jaxpr)
        return Work(
            flops=flops or sum(filter(None, counted.values())) / self._placement.mesh.size,
            memory_bytes=2.0 * self.argument_bytes + self._live.moved,
            model_flops=self._task.flops_per_step,
            tokens=self._task.config.training.tokens_per_step,
        )

    def cost(self, topology: Topology, flops: float | None = None) -> StepCost:
        """`flops`: of a device per step, if they are known; those of kernels are not in the jaxpr."""
        mesh = dict(self._placement.mesh.shape)
        with self._program.module.context:
            peak = live_peak(self._live, [array.names[0] for array in self._task.arrays])
        cost = StepCost(
            basis="traced",
            argument_bytes=self.argument_bytes,
            peak_bytes=sum(self.parts.values()),
            parts=self.parts,
            capacity_bytes=topology.chip.memory,
            collectives=by_network(self._flows(topology), mesh, topology),
            at_peak=peak.memory,
            peak_buffers=peak.buffers,
        )
        return timed(cost, self.work(flops), topology, mesh)


def _info(each: Transfer, group_size: int) -> CollectiveInfo:
    return CollectiveInfo(
        kind=each.kind,
        axes=list(dict.fromkeys(axis.partition(":")[0] for axis in each.axes)),  # of a part of an axis, the axis
        group_size=group_size,
        count=each.count,
        bytes_each=each.bytes_each,
        bytes_per_device=None if each.count is None else each.count * each.bytes_each,
        dtype="",
        shapes=[],
        op_name="",
        source=each.source,
        written=each.written,
    )
