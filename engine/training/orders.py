"""What all processes of a run do before the next step, as process 0 decides it."""

from msgspec import Struct

from ..wire.commands import AnyCommand


class SwitchNow(Struct, frozen=True, tag=True):
    """All is prepared for the switch to `preset` that was asked for."""

    preset: str


class ReadPreset(Struct, frozen=True, tag=True):
    """Take up a preset that process 0 has written where all processes see it: none is taken from the coordinator."""

    preset: str
    sha256: str


Order = AnyCommand | SwitchNow | ReadPreset


class Orders(Struct, frozen=True):
    orders: list[Order]
    stride: int
    """Steps until they agree again."""
