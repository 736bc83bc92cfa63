"""The devices of a process, and the task on them."""

import jax

from ..base.invalid import Invalid
from ..models.task import Task
from ..parallel.mesh import find_devices
from ..spec.config import SIMULATED_DEVICES, RunConfig
from .compilation_cache import use_compilation_cache


def devices_and_task(config: RunConfig, processes: int = 1) -> tuple[list[jax.Device], Task]:
    """The first use of jax’s devices in this process. Raises Invalid."""
    simulated = config.devices or SIMULATED_DEVICES
    if simulated % processes:
        raise Invalid(
            f"--devices {simulated} cannot be shared evenly by {processes} processes: give a multiple of that"
        )

    jax.config.update("jax_num_cpu_devices", simulated // processes)
    if config.platform:
        jax.config.update("jax_platforms", config.platform)

    use_compilation_cache()
    devices = find_devices(config.devices)
    return devices, Task(config, devices[0].platform)
