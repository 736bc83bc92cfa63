"""What a step under a preset would hold, move and compute, by formula: no compiler and no device.

The formulas follow what the step is written to do (decoder.py, task.py). Where the compiler does it otherwise, the
figure of the compiled program stands beside this one, and where they do not know the layout they give none.
"""

from functools import cached_property

from msgspec.structs import replace

from ..analysis.traffic import Flow
from ..base.invalid import Invalid
from ..models.task import Task
from ..program.program import decide_all
from ..spec.config import UserModel
from ..spec.preset import Preset
from ..spec.topology import Topology, wiring
from .known_layouts import why_unknown
from .ranking import Cost, Row, Work, timed
from .step_compute import StepCompute
from .step_layout import StepLayout
from .step_memory import StepMemory
from .step_traffic import StepTraffic

OF_A_USER = "the formulas are of the built-in model"


def estimate_row(task: Task, preset: Preset, devices: int, topology: Topology | None) -> Row:
    """Of one preset. Without a topology: on devices whose chip is not known, so that nothing can be said of time."""
    mesh = preset.sizes(devices)
    step = None
    try:
        if isinstance(task.config.model, UserModel):
            decide_all(task, preset, devices)
        else:
            step = Step(task, preset, devices)
    except Invalid as error:
        return Row(preset=preset.name, mesh=mesh, problems=list(error.problems))
    row = Row(
        preset=preset.name,
        mesh=mesh,
        wiring=[wiring(topology, mesh, [axis]) for axis in mesh] if topology else [],
        pipeline=step.layout.pipeline if step else None,
        laid_out=True,
        no_estimate=step.unknown if step else OF_A_USER,
    )
    return replace(row, estimate=step.cost(topology)) if step and not step.unknown else row


class Step:
    """One step of a task under a preset, as each device does it. Sizes are in bytes on one device."""

    def __init__(self, task: Task, preset: Preset, devices: int) -> None:
        """`task`: of the built-in model. Raises Invalid where the preset cannot be laid out."""
        self.layout = StepLayout(task, preset, devices)
        self.memory = StepMemory(self.layout)
        self.unknown = why_unknown(self.layout)
        """Why all but the arguments is not to be relied on; empty where the formulas hold."""

    @property
    def argument_bytes(self) -> int:
        """State and batch, whatever the layout."""
        return self.memory.argument_bytes

    @property
    def parts(self) -> dict[str, int]:
        """Of the peak, the largest first."""
        return self.memory.parts

    @cached_property
    def flows(self) -> list[Flow]:
        """The one that moves most first."""
        return StepTraffic(self.layout).flows

    @property
    def work(self) -> Work:
        return StepCompute(self.layout, self.memory).work

    def cost(self, topology: Topology | None) -> Cost:
        cost = Cost(
            argument_bytes=self.argument_bytes,
            peak_bytes=sum(self.parts.values()),
            parts=self.parts,
            capacity_bytes=topology.chip.memory if topology else None,
            collectives=self.flows,
        )
        return timed(cost, self.work, topology, self.layout.mesh) if topology else cost
