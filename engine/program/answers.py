"""`shardtui presets` and `shardtui inspect`, as the engine answers them."""

from ..base.invalid import Invalid
from ..base.versions import versions
from ..parallel.mesh import describe_device
from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.preset_reader import load_preset
from ..wire.answers import print_answer
from ..wire.descriptions import PresetListing
from ..wire.events import Inspection
from .inspection import inspect_program
from .presets import listed
from .program import compile_program, place
from .setup import devices_and_task


def presets(config: RunConfig) -> None:
    """Prints every preset as it stands on the devices of `config`, as JSON."""
    devices, task = devices_and_task(config)
    _, infos, problems = listed(config, task, devices)
    listing = PresetListing(devices=len(devices), presets=infos, problems=problems)
    print_answer(listing)


def inspect(config: RunConfig, *others: str) -> None:
    """Prints an `Inspection` of the preset of `config` and of each other one, as JSON, a line each."""
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
        print_answer(inspection)
