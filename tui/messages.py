"""Messages from workers and widgets to the app."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from ..engine.wire.commands import AnyCommand
from ..engine.wire.events import AnyEvent

if TYPE_CHECKING:  # the first frame does not wait for it
    from .state.origin_pages import Page


@dataclass
class EventsArrived(Message):
    events: list[AnyEvent]
    """Empty at the end of the history."""


@dataclass
class RowChosen(Message):
    """The user requests a view at one of its rows."""

    view: str
    row: tuple[str, ...]
    """What its `select` takes."""


@dataclass
class PresetChosen(Message):
    """The user requests a switch to this preset."""

    preset: str


@dataclass
class CommandRequested(Message):
    """To be sent to the engine as it is."""

    command: AnyCommand


@dataclass
class ComparisonRequested(Message):
    """The user requests that the presets be measured in this run."""

    left_out: frozenset[str] = frozenset()
    """Presets that are not to be measured."""


@dataclass
class ShardChosen(Message):
    """The cursor of a pane is on a shard."""

    devices: list[int]
    """Ids of the devices that hold it."""


@dataclass
class OriginRequested(Message):
    """The user wants to see where a layout, a collective or a finding comes from."""

    page: "Page"


class ViewShown(Message):
    """A view was mounted and has no state to show yet, or the user changed what all views show."""
