"""Events of checkpoints: saves and restores."""

from ..base import formatting
from ..spec.preset_reader import name_of
from .checkpoints import CheckpointInfo
from .event import Event, Level


class CheckpointSaving(Event, frozen=True):
    """The state is copied to the host; it is written while training continues."""

    LEVEL = Level.DETAIL

    step: int
    """Number of completed steps."""
    stall_seconds: float
    """Seconds that training was paused for the copy."""

    @property
    def line(self) -> str:
        return f"saving step {self.step:,}: stalled {formatting.seconds(self.stall_seconds)} to copy it"


class CheckpointSaved(Event, frozen=True):
    """A checkpoint is on disk, and its files were read back to digest them."""

    step: int
    """Number of completed steps when the state was copied."""
    bytes: int
    """Size on disk."""
    arrays: int
    """Number of arrays in it."""
    seconds: float
    """Seconds from the start of the copy to the commit."""

    @property
    def line(self) -> str:
        size, seconds = formatting.size(self.bytes), formatting.seconds(self.seconds)
        arrays = formatting.counted(self.arrays, "array")
        return f"checkpoint of step {self.step:,}: {arrays}, {size} on disk after {seconds}"


class CheckpointFailed(Event, frozen=True):
    """A checkpoint could not be saved and was discarded. Training continues."""

    LEVEL = Level.ERROR
    TOPIC = "checkpoint"

    step: int
    """Number of completed steps when the state was copied."""
    problems: list[str]
    """The problems, one line each."""

    @property
    def line(self) -> str:
        return f"checkpoint of step {self.step:,} failed: {'; '.join(self.problems)}"


class CheckpointDamaged(Event, frozen=True):
    """A checkpoint was found damaged when it was read, and was renamed."""

    LEVEL = Level.ERROR
    TOPIC = "checkpoint"

    step: int
    """Step of the checkpoint."""
    problems: list[str]
    """Every file and array that differs from what was written."""
    set_aside: str
    """Its new name."""

    @property
    def line(self) -> str:
        aside = f", set aside as {self.set_aside}" if self.set_aside else ""
        return f"checkpoint of step {self.step:,} is damaged{aside}: {'; '.join(self.problems)}"


class CheckpointsKept(Event, frozen=True):
    """The checkpoints that the run can resume from; reported when they change."""

    LEVEL = Level.DETAIL

    checkpoints: list[CheckpointInfo]
    """The checkpoints, oldest first."""

    @property
    def line(self) -> str:
        return f"checkpoints kept: {', '.join(f'{kept.step:,}' for kept in self.checkpoints) or 'none'}"


class Restored(Event, frozen=True):
    """The receipt of a restore: a checkpoint was loaded."""

    step: int
    """Step of the checkpoint; step + 1 is the next."""
    from_preset: str
    """The preset it was saved with."""
    from_devices: int
    """Number of devices it was saved on."""
    preset: str
    """The active preset, which it was loaded into."""
    arrays: int
    """Number of arrays that were loaded and compared."""
    seconds: float
    """Seconds to check the files, load, and compare the digests."""
    digests_equal: bool
    """True: a checkpoint in which an array has changed is not restored."""
    rolled_back: list[int]
    """Steps of later checkpoints, which were renamed and set aside."""

    @property
    def line(self) -> str:
        later = ", ".join(f"{step:,}" for step in self.rolled_back)
        return (
            f"restored step {self.step:,}, saved under {name_of(self.from_preset)} on "
            f"{formatting.counted(self.from_devices, 'device')}: "
            f"{self.arrays} digests equal (64-bit), {formatting.seconds(self.seconds)}"
            + (f"; set aside: {later}" if later else "")
        )


class RestoreFailed(Event, frozen=True):
    """A restore failed. The state is unchanged."""

    LEVEL = Level.ERROR
    TOPIC = "checkpoint"

    step: int
    """Step of the checkpoint."""
    problems: list[str]
    """The problems, one line each."""

    @property
    def line(self) -> str:
        return f"restoring step {self.step:,} failed: {'; '.join(self.problems)}"
