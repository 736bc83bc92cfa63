"""The presets of a run, described for its devices."""

from pathlib import Path

import jax

from ..models.task import Task
from ..spec.config import RunConfig
from ..spec.preset import Preset
from ..spec.preset_reader import load_preset, load_presets, name_of
from ..wire.descriptions import PresetInfo, PresetListing
from .placement import describe_preset
from .setup import devices_and_task


def list_presets(config: RunConfig) -> PresetListing:
    devices, task = devices_and_task(config)
    _, infos, problems = describe_presets(config, task, devices)
    return PresetListing(devices=len(devices), presets=infos, problems=problems)


def known_presets(config: RunConfig, created: Path | None) -> tuple[dict[str, Preset], list[str]]:
    """Returns all presets by name, and one problem per preset that cannot be read.

    These are the built-in presets, the user's, those in the folder `created`, which were created during the run, and
    those that the config names by file.
    """
    found, problems = load_presets(created)
    known = {preset.name: preset for preset in found}
    for name in (config.preset, *(switch.preset for switch in config.switches), *config.preset_files):
        if name not in known:
            preset = load_preset(name)
            known[preset.name] = preset
    return known, problems


def describe_presets(
    config: RunConfig, task: Task, devices: list[jax.Device], created: Path | None = None, shrinks: bool = False
) -> tuple[dict[str, Preset], list[PresetInfo], list[str]]:
    """Returns what `known_presets` does, and between them a description of each preset for the devices.

    `shrinks`: the meshes of the presets that the run starts with or switches to shrink to the devices.
    """
    known, problems = known_presets(config, created)
    if shrinks:
        known |= {name: known[name].shrunk(len(devices)) for name in requested(config)}
    return known, [describe_preset(task, preset, devices) for preset in known.values()], problems


def problems_of_requested(config: RunConfig, infos: list[PresetInfo]) -> list[str]:
    names = requested(config)
    return [problem for info in infos if info.name in names for problem in info.problems]


def requested(config: RunConfig) -> set[str]:
    """Returns the names of the presets that the run starts with or switches to."""
    return {name_of(name) for name in (config.preset, *(switch.preset for switch in config.switches))}
