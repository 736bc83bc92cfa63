"""The types of the values of options. A path becomes absolute, so that a run can resume from another directory."""

import argparse
import math

from ...engine.base.directories import expanded
from ...engine.base.user_error import UserError
from ...engine.spec.config import MOST_PROFILED, ScheduledSwitch
from ...engine.spec.model_choice import HF
from ...engine.spec.preset import AXIS_NAME
from ...engine.spec.preset_reader import is_file

MAX_DEVICES = 10**6
"""Largest product of the sizes in `--mesh`."""


def path(text: str) -> str:
    """Returns the absolute path; a URL is unchanged. Raises UserError for an unknown ~user."""
    if not text or "://" in text:
        return text
    return str(expanded(text).absolute())


def place(text: str, what: str) -> str:
    """Returns the absolute path of what is to be written. Raises UserError for a URL; `what`: for its message."""
    if "://" in text:
        raise UserError(f"{text}: {what} written to a path on this machine: give one, and copy it from there")
    return path(text)


def preset(text: str) -> str:
    """Returns a preset's name, or the absolute path of its file."""
    return path(text) if is_file(text) else text


def model(text: str) -> str:
    """Returns a model as `choose_model` takes it: the paths in `hf:DIR` and `FILE.py:FUNCTION` are absolute."""
    if text.startswith(HF):
        return HF + path(text.removeprefix(HF))
    place = text.rpartition(":")[0]
    return path(text) if "/" in place or place.endswith(".py") else text


def byte_count(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16e9") from error


def steps_to_trace(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROFILED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_PROFILED:,}")
    return int(text)


def number(text: str) -> float:
    """Returns a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def minutes(text: str) -> float:
    found = number(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, such as 10")
    return found


def sizes(text: str) -> dict[str, int]:
    """Reads sizes of mesh axes, `fsdp=-1,tensor=4`. Raises ArgumentTypeError."""
    parts = text.split(",")
    try:
        found = {axis.strip(): int(size) for axis, size in (part.split("=") for part in parts)}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2") from error
    if len(found) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} has an axis twice")
    return found


def mesh(text: str) -> dict[str, int]:
    """Reads the axes of a mesh, `data=4,model=2`. Raises ArgumentTypeError."""
    found = sizes(text)
    if not all(map(AXIS_NAME.fullmatch, found)) or min(found.values()) < 1 or math.prod(found.values()) > MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2")
    return found


def switch(text: str) -> ScheduledSwitch:
    step, colon, name = text.partition(":")
    if not colon or not step.isdecimal() or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:PRESET, such as 10:fsdp")
    return ScheduledSwitch(int(step), preset(name))


def presets(text: str) -> tuple[str, ...]:
    return tuple(preset(name.strip()) for name in text.split(","))
