"""Writes a preset as the TOML of its file; keys and values of other files, too."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from ..base.atomic_write import write_atomically, writing
from .preset import Axes, Override, Preset

BARE = re.compile(r"[A-Za-z0-9_-]+")


def preset_text(preset: Preset) -> str:
    """Returns TOML that `read_preset` reads as the same preset, except for its name, file and problems."""
    texts = {"summary": preset.summary, "teaches": preset.teaches}
    repeats = preset.pipeline_repeats if preset.pipeline_repeats > 1 else None
    schedule = {"microbatches": preset.microbatches, "pipeline_repeats": repeats} if preset.stage_axes else {}
    given = {key: str(value) for key, value in schedule.items() if value}
    axis_types = {"axis_types": toml_value(preset.axis_types)} if preset.axis_types != "auto" else {}
    tables = {
        "": {key: toml_value(text) for key, text in texts.items() if text} | given | axis_types,
        "[mesh]\n": {axis: str(size) for axis, size in preset.mesh.items()},
        "[rules]\n": {logical: _rule(splits) for logical, splits in preset.rules.items()},
        "[overrides]\n": {glob: _override(override) for glob, override in preset.overrides.items()},
    }
    return "\n".join(
        head + "".join(f"{toml_key(key)} = {value}\n" for key, value in table.items())
        for head, table in tables.items()
        if table
    )


def toml_key(key: str) -> str:
    return key if BARE.fullmatch(key) else toml_value(key)


def toml_value(value: object) -> str:
    """Returns a text, number, boolean or list of these as TOML; anything else as its text. TOML has JSON's escapes and
    needs one more, for DEL."""
    if isinstance(value, list):
        return _list(map(toml_value, cast(list[object], value)))
    if isinstance(value, float):
        return repr(value)  # of inf and nan, which JSON writes otherwise
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def write_preset(path: Path, text: str) -> None:
    """Writes the file atomically, also for several processes. Raises UserError."""
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def _rule(splits: tuple[Axes, ...]) -> str:
    first, *others = splits
    return _list(_list(map(toml_value, axes)) for axes in splits) if others else _axes(first)


def _axes(axes: Axes) -> str:
    return toml_value(axes[0] if axes else "") if len(axes) < 2 else _list(map(toml_value, axes))


def _override(override: Override) -> str:
    spec = _list(map(_axes, override.spec))
    return f"{{ spec = {spec}, min_size = {override.min_size} }}" if override.min_size else spec


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"
