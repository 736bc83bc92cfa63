"""Sets up jax in this process: its devices, and the task."""

import jax

from ..base.user_error import UserError
from ..models.task import Task
from ..parallel.mesh import find_devices
from ..spec.attempt import Attempt
from ..spec.config import SIMULATED_DEVICES, RunConfig
from .compilation_cache import free_dropped_programs, use_compilation_cache


def devices_and_task(
    config: RunConfig, processes: int = 1, attempt: Attempt | None = None
) -> tuple[list[jax.Device], Task]:
    """Configures jax, then returns this run's devices and its task. Nothing may use jax's devices before.

    `processes` train, each with the devices that it has when the run has all of its processes; those that the `attempt`
    leaves out are not used. Raises UserError if the devices cannot be had, or the model is invalid.
    """
    of, left_out = (attempt.of, attempt.left_out) if attempt else (processes, ())
    simulated = config.devices or SIMULATED_DEVICES
    is_uneven = simulated % of > 0
    jax.config.update("jax_num_cpu_devices", max(1, simulated // of))
    if config.platform:
        jax.config.update("jax_platforms", config.platform)
    use_compilation_cache()
    found = find_devices(None if is_uneven else config.devices and config.devices * processes // of)
    if is_uneven and (config.devices or found[0].platform == "cpu"):
        raise UserError(f"--devices {simulated} cannot be split evenly among {of} processes: give a multiple of {of}")
    devices = [device for device in found if device.id not in left_out]
    return devices, Task(config, devices[0].platform)


def simulated_task(config: RunConfig, platform: str = "", devices: int = SIMULATED_DEVICES) -> Task:
    """Returns the task of a platform, by default the config's, in a process with this many simulated devices."""
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_platforms", "cpu")
    free_dropped_programs()
    return Task(config, platform or config.platform or "cpu")


def simulated_devices_and_task(config: RunConfig) -> tuple[list[jax.Device], Task]:
    """Like `devices_and_task`, with simulated devices in place of the config's platform.

    The task is the platform's. For a process that compiles and runs nothing, while another holds the devices.
    """
    task = simulated_task(config, devices=config.devices or SIMULATED_DEVICES)
    return jax.devices(), task
