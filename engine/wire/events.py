"""Every event of a run: the vocabulary of `events.jsonl`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from .checkpoint_events import *
from .engine_events import *
from .event import *
from .preset_events import *
from .profile_events import *
from .step_events import *

if TYPE_CHECKING:
    AnyEvent = Event
else:
    AnyEvent = reduce(or_, Event.__subclasses__())
    """What a decoder needs to know."""
