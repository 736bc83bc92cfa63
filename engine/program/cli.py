"""The engine's side of `shardtui presets` and `shardtui inspect`."""

from collections.abc import Iterator

from ..base.invalid import Invalid
from ..base.versions import versions
from ..models.task import Task
from ..parallel.mesh import describe_device
from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.preset_reader import load_preset
from ..wire.descriptions import PresetListing
from ..wire.events import Inspection
from ..wire.stdout import print_answer
from .inspection import inspect_program
from .placement import Placement, place
from .presets import describe_presets
from .program import compile_program
from .setup import devices_and_task


def presets(config: RunConfig) -> None:
    """Prints every preset, described for the devices of `config`, as one line of JSON."""
    devices, task = devices_and_task(config)
    _, infos, problems = describe_presets(config, task, devices)
    print_answer(PresetListing(devices=len(devices), presets=infos, problems=problems))


def inspect(config: RunConfig, *others: str) -> None:
    """Prints an `Inspection` of the preset of `config`, then of each of `others`, as a line of JSON each.

    Raises Invalid if the config or a preset is invalid.
    """
    for _, _, inspection in inspections(config, *others):
        print_answer(inspection)


def inspections(config: RunConfig, *others: str) -> Iterator[tuple[Task, Placement, Inspection]]:
    """Yields what `inspect` prints, each with its task and placement. Raises as `inspect` does."""
    devices, task = devices_and_task(config)
    problems = problems_of(config)
    if problems:
        raise Invalid(*problems)
    for name in (config.preset, *others):
        placement = place(task, load_preset(name), devices)
        inspection = Inspection(
            devices=[describe_device(device) for device in devices],
            versions=versions(),
            flops_per_step=task.flops_per_step,
            compiled=compile_program(task, placement).description,
            inspected=inspect_program(task, placement),
        )
        yield task, placement, inspection
