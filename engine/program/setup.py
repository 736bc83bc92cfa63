"""Sets up jax in this process: its devices, and the task."""

import jax

from ..base.invalid import Invalid
from ..models.task import Task
from ..parallel.mesh import find_devices
from ..spec.config import SIMULATED_DEVICES, RunConfig
from .compilation_cache import use_compilation_cache


def devices_and_task(config: RunConfig, processes: int = 1) -> tuple[list[jax.Device], Task]:
    """Configures jax, then returns this run's devices and its task. Nothing may use jax's devices before.

    Raises Invalid if the devices cannot be had, or the model is invalid.
    """
    simulated = config.devices or SIMULATED_DEVICES
    if simulated % processes:
        raise Invalid(
            f"--devices {simulated} cannot be split evenly among {processes} processes: give a multiple of {processes}"
        )
    jax.config.update("jax_num_cpu_devices", simulated // processes)
    if config.platform:
        jax.config.update("jax_platforms", config.platform)
    use_compilation_cache()
    devices = find_devices(config.devices)
    return devices, Task(config, devices[0].platform)


def simulated_devices_and_task(config: RunConfig) -> tuple[list[jax.Device], Task]:
    """Returns what `devices_and_task` does, but simulated devices in place of those of the config's platform.

    The task is that of the platform. For a process that compiles and runs nothing, while another holds the devices.
    """
    jax.config.update("jax_num_cpu_devices", config.devices or SIMULATED_DEVICES)
    jax.config.update("jax_platforms", "cpu")
    return jax.devices(), Task(config, config.platform or "cpu")
