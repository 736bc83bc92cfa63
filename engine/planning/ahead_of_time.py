"""Compiles a preset ahead of time (AOT) for TPUs or GPUs that are not attached: the program never runs."""

import os
import re
from collections.abc import Mapping

import jax
from jax.experimental import topologies
from msgspec.structs import replace

from ..base.advice import first_line
from ..base.user_error import UserError
from ..hlo.module import parse
from ..hlo.peak_memory import Peak
from ..hlo.program_text import Described
from ..hlo.step_cost import StepCost, Work, timed
from ..hlo.traffic import flows
from ..models.task import Task
from ..parallel.mesh import canonical_order
from ..profiling.predicted import predicted_breakdown
from ..program.memory import TOO_LARGE
from ..program.placement import place
from ..program.program import compile_program, trace_step
from ..spec.preset import Preset
from ..spec.topology import Topology, spans
from ..wire.descriptions import MemoryInfo
from . import compilers
from .networks import with_networks
from .step_trace import traced_work

NEEDED = re.compile(r"(?:Used |HLO temporaries \()(?P<needed>[\d.]+)(?P<unit>[KMGT])\b")
PARTS = ("temporaries", "moments", "parameters", "variables", "batch", "padding")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

DESCRIPTION = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {optin}
  shared_memory_per_core: {target.shared_memory_per_core}
  core_count: {target.core_count}
  fpus_per_core: {target.fpus_per_core}
  l2_cache_size: {target.l2_cache_size}
  memory_bandwidth: {chip.memory_rate:.0f}
  clock_rate_ghz: {clock}
  device_memory_size: {chip.memory}
  cuda_compute_capability {{ major: {target.capability} }}
}}
runtime_version {{ major: {cuda} }}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.kinds[0]}"
"""
"""A `stream_executor.GpuTargetConfigProto` with the fields that all versions of the compiler know. The limits of
threads, blocks and registers: CUDA C++ Programming Guide, table of technical specifications, the same for all."""
RESERVED_SHARED_MEMORY = 1024
"""Bytes of a core's shared memory that a block cannot have: the same table."""
CUDA = 13


LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # else it queries the network for the machine's identity, for a minute
    "TPU_WORKER_HOSTNAMES": "localhost",  # else it warns that it has not found this one and the next
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may be training: this one uses no TPU
}
"""Settings of libtpu, unless the user has them, for slices that are not here."""


def find_slice(topology: Topology) -> list[jax.Device]:
    """Returns compile-only devices of the slice or slices, or GPUs, in canonical mesh order. Raises UserError if the
    compiler is not installed or does not know them."""
    if problem := compilers.missing(topology):
        raise UserError(problem)
    if topology.chip.target:
        return _find_gpus(topology)
    for name, value in LIBTPU.items():
        os.environ.setdefault(name, value)
    try:
        found = topologies.get_topology_desc(
            platform="tpu",
            topology_name=topology.name,
            chip_config_name=topology.chip.chip_config,
            wrap=(*topology.rings, False)[:3],  # without it, the compiler plans for a slice without wraparound links
            **({"num_slices": topology.slices} if topology.slices > 1 else {}),
        )
    except Exception as error:
        raise UserError(f"--topology {topology.name}: the TPU compiler does not know this slice: {error}") from error
    return canonical_order(found.devices)


def _find_gpus(topology: Topology) -> list[jax.Device]:
    chip = topology.chip
    assert chip.target
    description = DESCRIPTION.format(
        chip=chip,
        target=chip.target,
        optin=chip.target.shared_memory_per_core - RESERVED_SHARED_MEMORY,
        clock=chip.clock_rate / 1e9,
        cuda=CUDA,
    )
    hosts, gpus = topology.shape
    try:
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=description, topology=f"1x{hosts}x{gpus}"
        )
    except Exception as error:
        raise UserError(f"--topology {topology.name}: the GPU compiler refuses it: {error}") from error
    return list(found.devices)


def compile_cost(task: Task, preset: Preset, topology: Topology) -> StepCost:
    """Returns what the compiler reports for a preset; of a program that is too large for a TPU, only what it needs.
    Raises UserError if the preset cannot be laid out or the slice cannot be compiled for. The GPU compiler compiles
    programs of any size."""
    spans(preset.sizes(topology.devices), topology.domains)
    placement = place(task, preset, devices := find_slice(topology))
    try:
        program = compile_program(placement)
    except jax.errors.JaxRuntimeError as error:
        if TOO_LARGE not in str(error):
            raise
        if (needed := needed_bytes(str(error))) is None:
            raise UserError(first_line(str(error))) from error
        arguments, capacity = placement.argument_bytes, topology.chip.memory
        return StepCost(basis="compiled", argument_bytes=arguments, peak_bytes=needed, capacity_bytes=capacity)
    found, work = program.description, traced_work(task, preset, devices)
    peak = Peak(found.at_peak, found.peak_buffers) if found.at_peak else None
    described = Described(found.collectives, found.products, peak)
    return cost_of(found.memory, described, work, program.step.as_text() or "", found.mesh.axes, topology)


def lowered_text(task: Task, preset: Preset, topology: Topology) -> str:
    """Returns the text of the program that `compile_cost` compiles, without source lines. Raises as it does."""
    return trace_step(place(task, preset, find_slice(topology))).lower().as_text()


def cost_of(
    memory: MemoryInfo | None, described: Described, work: Work, text: str, mesh: Mapping[str, int], topology: Topology
) -> StepCost:
    """Returns the cost of a compiled program. `described`: what is read of its text."""
    assert memory is not None, "these compilers always report memory"
    collectives, peak = described.collectives, described.peak
    cost = StepCost(
        basis="compiled",
        argument_bytes=memory.arguments,
        peak_bytes=memory.peak,
        capacity_bytes=topology.chip.memory,
        parts={name: size for name in PARTS if (size := getattr(memory, name))},
        collectives=None if collectives is None else with_networks(flows(collectives), mesh, topology),
        at_peak=peak.memory if peak else None,
        peak_buffers=peak.buffers if peak else [],
    )
    cost = timed(cost, work, topology, mesh)
    try:
        breakdown = predicted_breakdown(parse(text), mesh, topology)
    except (UserError, ValueError):  # of the GPU compiler, which estimates no times, too long, or not readable
        return cost
    return replace(cost, breakdown=breakdown, scheduled_seconds=breakdown.step_seconds)


def needed_bytes(message: str) -> int | None:
    """Returns the bytes per device that a program needs, read from an out-of-memory message; None if it says none. The
    compiler's "temporaries" include arguments and outputs: multiplying 400 GiB by a small matrix reports 800 GiB."""
    found = NEEDED.search(message)
    return int(float(found["needed"]) * UNITS[found["unit"]]) if found else None
