"""Every event of a run: the vocabulary of `events.jsonl`."""

from .checkpoint_events import *
from .engine_events import *
from .event import *
from .preset_events import *
from .profile_events import *
from .step_events import *

AnyEvent = StepEvent | PresetEvent | CheckpointEvent | ProfileEvent | EngineEvent
