"""Every event of a run: the vocabulary of `events.jsonl`."""

from typing import TYPE_CHECKING, Union

from .checkpoint_events import *
from .engine_events import *
from .event import *
from .number_events import *
from .preset_events import *
from .profile_events import *
from .step_events import *
from .watched_events import *

if TYPE_CHECKING:
    AnyEvent = Event
else:
    AnyEvent = Union[tuple(Event.__subclasses__())]  # noqa: UP007
    """All events, for decoders."""
