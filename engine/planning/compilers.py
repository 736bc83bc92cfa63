"""Which compilers for devices that are not here are installed. Imports neither them nor jax."""

from importlib.util import find_spec

from ..base.versions import installed_version
from ..spec.topology import Topology

NO_TPU_COMPILER = "the TPU compiler is not installed: run `pip install 'shardtui[tpu]'` (needs no TPU)"
NO_GPU_COMPILER = "the GPU compiler is not installed: run `pip install 'shardtui[gpu-compiler]'` (needs no GPU)"
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
PTX_COMPILERS = ("nvidia-nvjitlink", "nvidia-cuda-nvcc", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvcc-cu12")
"""Without one of them, XLA's GPU compiler ends the process."""


def missing(topology: Topology) -> str | None:
    """Returns why nothing can be compiled for these devices and what to do; None if it can."""
    if topology.platform == "tpu":
        return None if find_spec("libtpu") else NO_TPU_COMPILER
    has_all = any(map(find_spec, PLUGINS)) and any(map(installed_version, PTX_COMPILERS))
    return None if has_all else NO_GPU_COMPILER
