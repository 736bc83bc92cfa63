"""The files of a draft: the preset that it is made from, and the user's preset that it is saved as."""

import re
from pathlib import Path

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.spec.mesh_names import mesh_preset
from ...engine.spec.preset import reference
from ...engine.spec.preset_files import PRESETS, user_presets
from ...engine.spec.preset_reader import load_preset
from ...engine.spec.preset_writer import preset_text
from ...engine.wire.framing import MAX_COMMAND_BYTES
from ..terminal.clean import printable
from .draft import Draft
from .run_state import RunState

MAX_TEXT_BYTES = MAX_COMMAND_BYTES // 4
"""Bytes of a preset that can be edited: a preview request carries two, and edits add to them."""
NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]")
MAX_NAME_CHARS = 64
"""Longest name that the engine accepts."""


def read_draft(name: str, state: RunState) -> Draft:
    """Returns a draft of the run's preset of that name, without edits. Raises Invalid."""
    info = state.preset_info(name)
    preset = load_preset(reference(info.name, info.source) if info else name)
    size = len(preset_text(preset).encode())
    if size > MAX_TEXT_BYTES:
        raise Invalid(f"{preset.source}: {size:,} bytes: at most {MAX_TEXT_BYTES:,} can be edited here")
    preset = msgspec.structs.replace(preset, name=NOT_IN_NAMES.sub("-", preset.name)[:MAX_NAME_CHARS])
    return Draft(preset, preset, 1, frozenset())


def user_file(draft: Draft) -> Path:
    """Returns the file that a draft is saved as."""
    return user_presets() / "parallelism" / f"{draft.name}.toml"


def replaced_by(path: Path) -> str | None:
    """Returns what to ask the user before a preset is written to `path`; None for nothing."""
    name = path.stem
    if path.exists():
        return f"{printable(str(path))} already exists. Replace it?"
    if (PRESETS / "parallelism" / path.name).exists():
        return f"{name} is built in. Replace it with yours in every run that starts from now on?"
    if mesh_preset(name):
        return f"{name} names a mesh. Replace it with yours in every run that starts from now on?"
    return None
