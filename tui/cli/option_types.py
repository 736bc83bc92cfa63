"""Values of options that argparse reads from text."""

import argparse
import math

from ...engine.spec.config import MOST_PROFILED, ScheduledSwitch
from .run_config import absolute


def sizes(text: str) -> dict[str, int]:
    """Returns sizes by mesh axis, of `AXIS=SIZE,…`. Raises ArgumentTypeError."""
    try:
        return {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as fsdp=-1,tensor=4") from error


def byte_count(text: str) -> int:
    """Returns a number of bytes, such as 16e9. Raises ArgumentTypeError."""
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16e9") from error


def steps_to_trace(text: str) -> int:
    """Returns a number of steps that the profiler may trace. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROFILED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_PROFILED:,}")
    return int(text)


def minutes(text: str) -> float:
    """Returns a positive number of minutes. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, such as 10")
    return found


def price(text: str) -> tuple[str, float]:
    """Returns the chip and the price of `CHIP=USD`. Raises ArgumentTypeError."""
    chip, _, dollars = text.partition("=")
    try:
        found = float(dollars)
    except ValueError:
        found = 0.0
    if not chip or not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not CHIP=USD, the price of an hour, such as v5p=4.20")
    return chip, found


def scheduled_switch(text: str) -> ScheduledSwitch:
    """Returns the switch of `STEP:PRESET`. Raises ArgumentTypeError."""
    step, colon, preset = text.partition(":")
    if not colon or not step.isdecimal() or not preset:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:PRESET, such as 10:fsdp")
    return ScheduledSwitch(int(step), absolute(preset))


def listed_presets(text: str) -> tuple[str, ...]:
    """Returns the presets of `P,Q`, files by their absolute path."""
    return tuple(absolute(name.strip()) for name in text.split(","))
