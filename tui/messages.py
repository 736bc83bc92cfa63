"""What workers and widgets tell the app."""

from dataclasses import dataclass

from textual.message import Message

from ..engine.protocol import AnyEvent


@dataclass
class EventsArrived(Message):
    """From the engine, in order."""

    events: list[AnyEvent]


@dataclass
class PresetChosen(Message):
    """The user wants to go on under this preset."""

    preset: str


class ViewShown(Message):
    """A view has come up and shows nothing yet."""
