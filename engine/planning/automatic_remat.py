"""`remat = "auto"`: the policy that recomputes least and fits the devices' memory.

Even where all activations fit, it is not "none": by the TPU compiler's estimates, elementwise results take longer to
write and read than to recompute. Llama-2 7B on v5p:2x2x2 takes 1.37 s with `minimal_with_context`, 1.41 s with none.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import jax

from ..base.user_error import UserError
from ..models.task import Task
from ..spec.model_config import POLICIES
from ..spec.preset import Preset
from .step_trace import traced_cost


def usable(capacities: Iterable[int | None], margin: float) -> int | None:
    """Returns the bytes per device that a step may need, where the share `margin` of the smallest device's memory stays
    free; None if that is unknown."""
    known = [capacity for capacity in capacities if capacity is not None]
    return int(min(known) * (1 - margin)) if known else None


def fitting_remats(task: Task, devices: Sequence[jax.Device], capacity: int | None, preset: Preset) -> Iterator[str]:
    """Yields the remat policies but `full` whose traced step fits `capacity` bytes, those that recompute least first.
    None does if the capacity is unknown, or the step cannot be traced. A trace takes about a second."""
    if capacity is None:
        return
    for remat in reversed(POLICIES):
        tried = Task(task.config.with_remat(remat), task.platform)
        with suppress(UserError):
            if traced_cost(tried, preset, len(devices), None, devices).peak_bytes <= capacity:
                yield remat
