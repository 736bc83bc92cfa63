"""The presets of a run, and how each stands on its devices."""

from pathlib import Path

import jax

from ..models.task import Task
from ..spec.config import RunConfig
from ..spec.preset import Preset
from ..spec.preset_reader import load_preset, load_presets, name_of
from ..wire.descriptions import PresetInfo
from .program import describe_preset


def known_presets(config: RunConfig, made: Path | None) -> tuple[dict[str, Preset], list[str]]:
    """The built-in presets, the user's, those `made` in the run, and those that it names by file; and what cannot be
    read."""
    found, problems = load_presets(made)
    known = {preset.name: preset for preset in found}
    for name in (config.preset, *(switch.preset for switch in config.switches), *config.preset_files):
        if name not in known:
            preset = load_preset(name)
            known[preset.name] = preset
    return known, problems


def listed(
    config: RunConfig, task: Task, devices: list[jax.Device], made: Path | None = None
) -> tuple[dict[str, Preset], list[PresetInfo], list[str]]:
    """As `known_presets`, and how each stands on the devices."""
    known, problems = known_presets(config, made)
    return known, [describe_preset(task, preset, devices) for preset in known.values()], problems


def problems_of_named(config: RunConfig, infos: list[PresetInfo]) -> list[str]:
    """Why presets that the run names cannot be."""
    names = {name_of(name) for name in (config.preset, *(switch.preset for switch in config.switches))}
    return [problem for info in infos if info.name in names for problem in info.problems]
