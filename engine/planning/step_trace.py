"""Memory, traffic and compute of a step from its trace, for models that no formula covers. Compiles nothing."""

import math
from collections.abc import Sequence
from functools import cached_property

import jax
from jax.stages import Traced

from ..analysis.traffic import Flow, flows
from ..models.flops import flops_by_scope
from ..models.task import Task
from ..origins.explain import partition
from ..origins.step import platforms
from ..origins.transfers import Transfer
from ..program.leaves import bytes_of
from ..program.placement import Placement, argument_bytes, place
from ..program.program import trace_step
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire.descriptions import CollectiveInfo
from .networks import by_network
from .ranking import Cost, Work, timed


class StepTrace:
    """A traced step of a task under a preset. Sizes are bytes per device; docs/planning.md has their errors."""

    def __init__(self, task: Task, preset: Preset, devices: Sequence[jax.Device]) -> None:
        """`devices`: as many as the slice has; simulated ones will do. Raises Invalid if the preset does not fit."""
        self._task, self._placement = task, place(task, preset, devices)

    @cached_property
    def _traced(self) -> Traced:
        return trace_step(self._task, self._placement)

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes at the peak by what they hold, the largest first.

        The arguments are exact. Gradients are laid out like the parameters. What the forward pass saves is counted as
        split over the axes of the batch alone, and as if the compiler kept all of it and nothing else.
        """
        task, placement = self._task, self._placement
        params, shardings = task.abstract_state.params, placement.state_shardings.params
        gradients = sum(
            bytes_of(sharding.shard_shape(leaf.shape), leaf.dtype)
            for leaf, sharding in zip(*map(jax.tree.leaves, (params, shardings)), strict=True)
        )
        saved = task.residual_bytes / token_shards(placement)
        found = {"arguments": self.argument_bytes, "gradients": gradients, "saved activations": round(saved)}
        return dict(sorted(found.items(), key=lambda part: -part[1]))

    @cached_property
    def argument_bytes(self) -> int:
        """Bytes of state and batch, exact."""
        return argument_bytes(self._task, self._placement)

    @cached_property
    def flows(self) -> list[Flow]:
        """Collectives that the partitioner's own passes insert, those with most bytes first. Raises Invalid if jaxlib
        lacks the passes."""
        module = self._traced.lower(lowering_platforms=platforms(self._task, self._placement)).compiler_ir("stablehlo")
        graph, transfers = partition(module)
        return flows([_info(each, graph.parts(each.axes)) for each in transfers if each.axes])

    @property
    def work(self) -> Work:
        """FLOPs of the matrix products in the jaxpr, if the devices share all of them, and the bytes of arguments,
        gradients and saved activations, written and read once."""
        counted = flops_by_scope(self._traced.jaxpr)
        return Work(
            flops=sum(filter(None, counted.values())) / self._placement.mesh.size,
            memory_bytes=2.0 * sum(self.parts.values()),
            model_flops=self._task.flops_per_step,
            tokens=self._task.config.training.tokens_per_step,
        )

    def cost(self, topology: Topology) -> Cost:
        """Returns the cost on a slice."""
        mesh = dict(self._placement.mesh.shape)
        cost = Cost(
            basis="trace",
            argument_bytes=self.argument_bytes,
            peak_bytes=sum(self.parts.values()),
            parts=self.parts,
            capacity_bytes=topology.chip.memory,
            collectives=by_network(self.flows, mesh, topology),
        )
        return timed(cost, self.work, topology, mesh)


def token_shards(placement: Placement) -> int:
    """Returns into how many shards the first array of the batch is split."""
    first = jax.tree.leaves(placement.batch)[0]
    return math.prod(placement.mesh.shape[axis] for dim in first.dims for axis in dim.axes)


def _info(each: Transfer, group_size: int) -> CollectiveInfo:
    return CollectiveInfo(
        kind=each.kind,
        axes=each.axes,
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
