"""Previews an edited preset: its layout and the cost of a step, by formula. Safe in any thread while training runs."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import jax

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..models.task import Task
from ..parallel.mesh import describe_mesh
from ..program.placement import argument_bytes, place
from ..spec.preset_reader import parse_preset
from ..wire.commands import PreviewPreset
from ..wire.descriptions import Preview
from ..wire.events import PresetPreviewed
from .estimate import estimate_row


def preview(task: Task, devices: Sequence[jax.Device], question: PreviewPreset) -> PresetPreviewed:
    """Returns previews of the preset before and after the edit. Never raises: errors become `problems`."""
    before, after = (_preview(task, devices, question.preset, text) for text in (question.before, question.after))
    return PresetPreviewed(number=question.number, before=before, after=after)


def _preview(task: Task, devices: Sequence[jax.Device], name: str, text: str) -> Preview:
    try:
        preset = parse_preset(Path(f"{name}.toml"), text)
        placement = place(task, preset, devices)
        row = estimate_row(task, preset, len(devices), None)
    except Invalid as error:
        return Preview(problems=list(error.problems))
    except Exception as error:  # a viewer waits for the answer
        traceback.print_exception(error)
        return Preview(problems=problems_in(error))
    arrays = placement.describe_all(task, (placement.state_shardings, placement.batch_shardings))
    cost = row.estimate
    return Preview(
        problems=[],
        mesh=describe_mesh(placement.mesh),
        arrays=arrays,
        argument_bytes=argument_bytes(task, placement),
        no_estimate=row.no_estimate,
        peak_bytes=cost.peak_bytes if cost else None,
        sent_bytes=cost.sent_by_axis if cost else {},
    )
