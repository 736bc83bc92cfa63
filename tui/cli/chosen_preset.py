"""The preset file of what a search chose, and the command that trains with it."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ...engine.planning.ranking import Row, settings_of
from ...engine.spec.preset import BUILT_IN, reference
from ...engine.spec.preset_reader import load_preset
from ...engine.spec.preset_writer import preset_text, write_preset
from ...engine.spec.topology import Topology
from ...engine.wire import run_directory
from .run_config import set_words

STEPS = 1000
"""Steps of the command that is printed."""


def default_place(model: str, topology: Topology) -> Path:
    """Returns the file of the preset that was chosen last for a model on a topology."""
    name = f"{model}-{topology.slices}-{topology.name}" if topology.slices > 1 else f"{model}-{topology.name}"
    return run_directory.chosen_presets() / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.')[:64]}.toml"


def write_chosen(row: Row, path: Path, topology: Topology, train: Sequence[str]) -> str:
    """Writes the preset of a row, and returns the command that trains with it. `train`: its words without the preset.

    Raises Invalid if the file cannot be written.
    """
    preset = load_preset(row.preset)
    mesh = preset.sizes(topology.devices)
    command = train_command(train, reference(path.stem, str(path)), row)
    chosen = replace(
        preset,
        mesh=mesh,
        source=BUILT_IN,
        summary=f"{row.preset}, chosen by `shardtui plan` for {topology.title}",
        teaches=f"Train with it: {command}",
    )
    write_preset(path, preset_text(chosen))
    return command


def train_command(train: Sequence[str], preset: str, row: Row) -> str:
    """Returns the command that trains with a preset and the settings of a row."""
    return shlex.join([*train, "--preset", preset, *set_words(settings_of(row.settings)), "--steps", str(STEPS)])
