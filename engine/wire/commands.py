"""What a viewer asks of an engine."""

from typing import Annotated

from msgspec import Meta, Struct

from ..spec.config import MOST_PROFILED
from ..spec.preset_files import FILE_NAME
from .version import VERSION

PresetName = Annotated[str, Meta(pattern=rf"^{FILE_NAME.pattern}\Z")]


class Command(Struct, frozen=True, tag=True):
    """Something asked of the engine. It takes effect between two steps."""


class Hello(Command, frozen=True):
    """What a viewer says first."""

    protocol: int = VERSION


class SwitchPreset(Command, frozen=True):
    """Go on under another preset. Asking for the active one takes back a switch that is still being compiled."""

    preset: PresetName


class AddPreset(Command, frozen=True):
    """Keep a new preset with the run, and go on under it."""

    preset: PresetName
    text: str
    """Of its file."""


class WeighPreset(Command, frozen=True):
    """Say what a preset would be, beside another one, with `PresetWeighed`. No step waits for it, nothing is kept."""

    number: int
    """Comes back with the answer."""
    preset: PresetName
    before: str
    """As the text of its file, like `after`."""
    after: str


class PreparePreset(Command, frozen=True):
    """A switch to this preset is likely: compile it while a core is free. In the place of what was likely before."""

    preset: PresetName


class InspectPreset(Command, frozen=True):
    """Ask the compiler for what `PresetInspected` tells. It costs about half a compilation beside the steps."""

    preset: PresetName


class Pause(Command, frozen=True):
    pass


class Resume(Command, frozen=True):
    pass


class StepOnce(Command, frozen=True):
    """One step, then pause."""


class SaveCheckpoint(Command, frozen=True):
    pass


class RestoreCheckpoint(Command, frozen=True):
    """Go back to a checkpoint; later ones are set aside."""

    step: int


class ProfileSteps(Command, frozen=True):
    """Trace the next steps."""

    steps: Annotated[int, Meta(ge=1, le=MOST_PROFILED)]


class Stop(Command, frozen=True):
    """Finish the step, save, and end."""

    unhurried: bool = False
    """However long the save takes: who asks watches whether it moves, and --stop-timeout does not count."""


AnyCommand = (
    Hello
    | SwitchPreset
    | AddPreset
    | WeighPreset
    | PreparePreset
    | InspectPreset
    | SaveCheckpoint
    | RestoreCheckpoint
    | ProfileSteps
    | Pause
    | Resume
    | StepOnce
    | Stop
)
