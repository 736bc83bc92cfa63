"""What all processes of a run do before the next step, as decided by process 0."""

from msgspec import Struct

from ..wire.commands import AnyCommand


class SwitchNow(Struct, frozen=True, tag=True):
    """Every process is ready for the requested switch to `preset`."""

    preset: str


class ReadPreset(Struct, frozen=True, tag=True):
    """Read a preset that process 0 has written next to the checkpoints: the coordinator does not carry its text."""

    preset: str
    sha256: str
    """Digest of the preset's text."""


class MeasureParts(Struct, frozen=True, tag=True):
    """Trace the next steps for the parts of a step: it is time."""


LockstepCommand = AnyCommand | SwitchNow | ReadPreset | MeasureParts


class Lockstep(Struct, frozen=True):
    """What every process carries out before the same step."""

    commands: list[LockstepCommand]
    """Commands in the order in which they are carried out."""
    stride: int
    """Steps until the processes agree again."""
