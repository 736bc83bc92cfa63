"""The commands that a viewer sends to an engine."""

from typing import TYPE_CHECKING, Annotated, Union

from msgspec import Meta, Struct

from ..spec.config import MOST_PROFILED, Sampling
from ..spec.preset_files import FILE_NAME
from .event import VERSION

PresetName = Annotated[str, Meta(pattern=rf"^{FILE_NAME.pattern}\Z")]


class Command(Struct, frozen=True, tag=True):
    """A request to the engine. It takes effect between two steps."""


class Hello(Command, frozen=True):
    """The first message of a viewer."""

    protocol: int = VERSION


class SwitchPreset(Command, frozen=True):
    """Switch to another preset, in place of a switch that is still compiling."""

    preset: PresetName


class CancelSwitch(Command, frozen=True):
    """Cancel a switch that is still compiling; the answer is `SwitchCancelled`."""


class AddPreset(Command, frozen=True):
    """Save a new preset with the run, and switch to it."""

    preset: PresetName
    text: str


class PreviewPreset(Command, frozen=True):
    """Estimate an edited preset and the original; the answer is `PresetPreviewed`. No step waits, nothing is saved."""

    number: int
    """Chosen by the viewer; the answer repeats it."""
    preset: PresetName
    before: str
    after: str


class PreparePreset(Command, frozen=True):
    """Compile a preset ahead of a likely switch, while a core is free. Replaces an earlier request."""

    preset: PresetName


class InspectPreset(Command, frozen=True):
    """Report the layouts inside a step; the answer is `PresetInspected`. Costs half a compilation in the background."""

    preset: PresetName


class Pause(Command, frozen=True):
    """Pause after the current step."""


class Resume(Command, frozen=True):
    """Continue training after a pause."""


class StepOnce(Command, frozen=True):
    """Run one step, then pause."""


class SaveCheckpoint(Command, frozen=True):
    """Save a checkpoint now."""


class RestoreCheckpoint(Command, frozen=True):
    """Roll back to a checkpoint; later ones are renamed and set aside."""

    step: int


class ProfileSteps(Command, frozen=True):
    steps: Annotated[int, Meta(ge=1, le=MOST_PROFILED)]


class SampleText(Command, frozen=True):
    """Sample text from the model as it is; the answer is `Sampled`. Training waits meanwhile."""

    number: int
    """Chosen by the viewer, above 0; the answer repeats it."""
    sampling: Sampling


class MeasureNumbers(Command, frozen=True):
    """Measure the numbers in all arrays before the next step; the answer is `NumbersMeasured`."""


class Stop(Command, frozen=True):
    """Finish the current step, save a checkpoint, and exit."""

    unhurried: bool = False
    """If true, --stop-timeout does not apply to the save: the sender watches its progress instead."""


if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = Union[tuple(Command.__subclasses__())]  # noqa: UP007
    """All commands, for decoders."""
