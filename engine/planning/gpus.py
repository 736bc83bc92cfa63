"""GPUs that are not attached, for XLA's GPU compiler: it needs a description of them, but neither GPU nor driver."""

import jax
from jax.experimental import topologies

from ..base.invalid import Invalid
from ..spec.topology import Topology

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
"""Major version of the runtime."""


def find_gpus(topology: Topology) -> list[jax.Device]:
    """Returns compile-only GPUs, host by host. Raises Invalid if the compiler refuses their description."""
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
        raise Invalid(f"--topology {topology.name}: the GPU compiler refuses it: {error}") from error
    return list(found.devices)
