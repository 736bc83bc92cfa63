"""Finds and reads the files of parallelism and model presets, built-in and the user's own; messages on wrong values."""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from ..base.directories import ENGINE, config_directory
from ..base.untrusted import read_text, refusing

PRESETS = ENGINE.parent / "presets"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A valid name of a preset or a model: its file name without `.toml`."""
MAX_FILE_BYTES = 2**20
KEY = re.compile(r"\.(\w+)`$")


def user_presets() -> Path:
    """Returns the directory of the user's own presets, `$XDG_CONFIG_HOME/shardtui/presets`."""
    return config_directory() / "presets"


def preset_files(kind: Literal["models", "parallelism"]) -> dict[str, Path]:
    """Returns preset name to file, by name, pitfalls last. The user's replace the built-in; see `misnamed_files`."""
    paths = [path for path in _toml_files(kind) if FILE_NAME.fullmatch(path.stem)]
    return {path.stem: path for path in sorted(paths, key=lambda path: (is_pitfall(path.stem), path.stem))}


def is_pitfall(preset: str) -> bool:
    """Returns whether a preset has a deliberate mistake, to learn from."""
    return preset.startswith("pitfall")


def misnamed_files(kind: Literal["models", "parallelism"]) -> list[Path]:
    return [path for path in _toml_files(kind) if not FILE_NAME.fullmatch(path.stem)]


def _toml_files(kind: str) -> list[Path]:
    folders = (PRESETS / kind, user_presets() / kind)
    return [path for folder in folders for path in folder.glob("*.toml") if not path.is_dir()]


def read_toml(path: Path) -> dict[str, Any]:
    return parse_toml(path, read_text(path, MAX_FILE_BYTES))


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    with refusing(str(path), "not valid TOML"):
        return tomllib.loads(text)


def wrong_value(error: msgspec.ValidationError, *structs: type[Struct]) -> str:
    """Returns msgspec's message with the key as files and options spell it, and its values in `structs`."""
    text = str(error).replace(" - at `$", " at `")
    found = KEY.search(text)
    if "Invalid enum value" not in text or found is None:
        return text
    hints = {name: hint for struct in structs for name, hint in get_type_hints(struct).items()}
    return f"{text}: choose from {', '.join(_choices(hints.get(found[1])))}"


def _choices(hint: Any) -> list[str]:
    """Returns the values that a type allows, if it names them."""
    if hint is bool:
        return ["true", "false"]
    parts = get_args(hint)
    return list(map(str, parts)) if get_origin(hint) is Literal else [each for part in parts for each in _choices(part)]
