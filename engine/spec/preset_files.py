"""The files of presets and models: built-in ones, and those of the user."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from ..base.installed import ENGINE
from ..base.invalid import Invalid
from ..base.regular_file import open_regular

PRESETS = ENGINE.parent / "presets"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a preset or a model may be called."""

LARGEST_FILE = 2**20
"""Bytes of a preset or a model."""


def user_presets() -> Path:
    """The directory of the user's own presets, `$XDG_CONFIG_HOME/shardtui/presets`."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "shardtui" / "presets"


def preset_files(kind: Literal["models", "parallelism"]) -> dict[str, Path]:
    """Name to file, by name and the pitfalls last; a file of the user's with a built-in name takes its place.

    `misnamed_files` are left out.
    """
    paths = [path for path in _toml_files(kind) if FILE_NAME.fullmatch(path.stem)]
    return {path.stem: path for path in sorted(paths, key=lambda path: (is_pitfall(path.stem), path.stem))}


def is_pitfall(preset: str) -> bool:
    """One that is there to learn from."""
    return preset.startswith("pitfall")


def misnamed_files(kind: Literal["models", "parallelism"]) -> list[Path]:
    return [path for path in _toml_files(kind) if not FILE_NAME.fullmatch(path.stem)]


def _toml_files(kind: str) -> list[Path]:
    folders = (PRESETS / kind, user_presets() / kind)
    return [path for folder in folders for path in folder.glob("*.toml") if not path.is_dir()]


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises Invalid with the file's name and place."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise Invalid(f"{path}: {size} bytes: at most {LARGEST_FILE}")
            text = file.read().decode()
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_toml(path, text)


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """The tables of `text`, which stands in the file or will. Raises Invalid with the file's name and place."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, so is a number of 5,000 digits
        raise Invalid(f"{path}: not valid TOML: {error}") from error
