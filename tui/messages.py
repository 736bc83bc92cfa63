"""What workers and widgets tell the app."""

from dataclasses import dataclass

from textual.message import Message

from ..engine.wire.commands import WeighPreset
from ..engine.wire.events import AnyEvent


@dataclass
class EventsArrived(Message):
    """From the engine, in order."""

    events: list[AnyEvent]


@dataclass
class PresetChosen(Message):
    """The user wants to go on under this preset."""

    preset: str


@dataclass
class DraftChanged(Message):
    """The user wants to know what an edited preset would be."""

    question: WeighPreset


@dataclass
class DraftApplied(Message):
    """The user wants to go on under an edited preset."""

    name: str
    text: str


@dataclass
class PresetConsidered(Message):
    """The cursor rests on this preset: a switch to it is likely."""

    preset: str


class ComparisonAsked(Message):
    """The user wants to have the presets measured in this run."""


class ComparisonCancelled(Message):
    """The user wants the run back under the preset that it came from."""


@dataclass
class ShardChosen(Message):
    """The cursor of a pane stands on a shard that these devices hold."""

    devices: list[int]


@dataclass
class ArrayChosen(Message):
    """The user wants to see this array."""

    name: str


@dataclass
class DeviceFollowed(Message):
    """Mark this device's shard of every array; None for no device."""

    device: int | None


class WatchWanted(Message):
    """The user is done with a view that was opened for one thing."""


class ViewShown(Message):
    """A view has come up and shows nothing yet."""
