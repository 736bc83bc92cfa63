"""Where the wall time of a run went: the figures, and how they are said."""

from enum import StrEnum

from msgspec import Struct

from ...engine.base import figures

LEAST_SHARE = 0.005
"""Smaller parts are left out of a sentence: they would be 0 %."""


class Part(StrEnum):
    """What a run spends its time on. The value is its name in a sentence."""

    STEPS = "steps"
    REPEATED_STEPS = "repeated steps"
    INPUT = "input wait"
    COMPILING = "compiling"
    SWITCHING = "switching"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    TRACING = "tracing"
    PAUSED = "paused"
    STARTING = "starting"
    NO_ENGINE = "no engine"
    OTHER = "other"


class Goodput(Struct, frozen=True, kw_only=True):
    """The wall time of a run, from its first event to its last, or to now if it is live. The parts add up to it."""

    wall_seconds: float
    """Seconds of wall time."""
    share: float | None
    """Fraction of the wall time in `steps_seconds`; null if there is no wall time yet."""
    steps_seconds: float
    """Seconds of steps, of those that were repeated the first time. With an external loop also what it does between
    steps."""
    repeated_steps_seconds: float
    """Seconds of steps that were made again after a fault, or after going back to a checkpoint."""
    input_seconds: float | None
    """Seconds that devices waited for batches, at most; null if an external loop prepares them: then they are in
    `steps_seconds`."""
    compiling_seconds: float
    """Seconds that training waited for a compilation. Steps that run during one are steps."""
    switching_seconds: float
    """Seconds that training waited while a switch moved the state, also if it failed."""
    checkpoints_seconds: float
    """Seconds that training waited to save and restore checkpoints. Steps that run while one is written are steps."""
    evaluation_seconds: float
    """Seconds that training waited for evaluations of the held-out data."""
    tracing_seconds: float
    """Seconds that training waited while a trace was written and read."""
    paused_seconds: float
    """Seconds that training was paused, without the steps, switches and checkpoints of that time."""
    starting_seconds: float
    """Seconds from the start of an engine to its first step, without compilation and restoring."""
    no_engine_seconds: float
    """Seconds between the end of an engine and the start of the next; after a crash, from the last event on."""
    other_seconds: float
    """Seconds of nothing above, such as steps that were lost in a crash, and ending the engine."""

    @property
    def parts(self) -> dict[Part, float]:
        """Seconds of each part that is known."""
        seconds = {part: getattr(self, f"{part.name.lower()}_seconds") for part in Part}
        return {part: value for part, value in seconds.items() if value is not None}


def goodput_words(goodput: Goodput, width: int | None = None) -> str:
    """Returns `91 % steps · 4 % checkpoints · 3 % compiling`: steps, then what took most. Empty before any time passed.

    `width`: cells to fit in, without the smallest parts if need be.
    """
    wall = goodput.wall_seconds
    if not wall:
        return ""
    shares = {part: seconds / wall for part, seconds in goodput.parts.items()}
    others = sorted(shares.keys() - {Part.STEPS}, key=lambda part: (-shares[part], part))
    words = [f"{figures.percent(shares[part])} {part}" for part in others if shares[part] >= LEAST_SHARE]
    words.insert(0, f"{figures.percent(shares[Part.STEPS])} {Part.STEPS}")
    if goodput.input_seconds is None:
        words.append(f"{Part.INPUT} unknown")
    while width is not None and len(words) > 1 and len(" · ".join(words)) > width:
        words.pop()
    return " · ".join(words)


def share_words(goodput: Goodput) -> str:
    """Returns the share of steps, such as `91 %`; `–` if there is none yet."""
    return "–" if goodput.share is None else figures.percent(goodput.share)
