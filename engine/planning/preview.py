"""What a preset would be and what a step under it would cost: by formula, in any thread, beside the steps."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import jax

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..models.task import Task
from ..parallel.mesh import describe_mesh
from ..program.program import argument_bytes, place
from ..spec.preset_reader import parse_preset
from ..wire.commands import WeighPreset
from ..wire.descriptions import Weighed
from ..wire.events import PresetWeighed
from .estimate import estimate_row


def weigh(task: Task, devices: Sequence[jax.Device], question: WeighPreset) -> PresetWeighed:
    """Answers whatever is asked."""
    before, after = (_weighed(task, devices, question.preset, text) for text in (question.before, question.after))
    return PresetWeighed(number=question.number, before=before, after=after)


def _weighed(task: Task, devices: Sequence[jax.Device], name: str, text: str) -> Weighed:
    try:
        preset = parse_preset(Path(f"{name}.toml"), text)
        placement = place(task, preset, devices)
        row = estimate_row(task, preset, len(devices), None)
    except Invalid as error:
        return Weighed(problems=list(error.problems))
    except Exception as error:  # nobody else would answer, and a viewer waits
        traceback.print_exception(error)
        return Weighed(problems=problems_in(error))
    arrays = placement.describe_all(task, (placement.state_shardings, placement.batch_shardings))
    cost = row.estimate
    return Weighed(
        problems=[],
        mesh=describe_mesh(placement.mesh),
        arrays=arrays,
        argument_bytes=argument_bytes(task, placement),
        no_estimate=row.no_estimate,
        peak_bytes=cost.peak_bytes if cost else None,
        sent_bytes=cost.sent_by_axis if cost else {},
    )
