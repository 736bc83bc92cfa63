"""Descriptions of checkpoints."""

import math

from msgspec import Struct


class CheckpointInfo(Struct, frozen=True, kw_only=True):
    """A checkpoint that a run can resume from."""

    step: int
    """Steps done when it was saved."""
    time: float
    """Seconds since the epoch."""
    preset: str
    """The active preset when it was saved."""
    devices: int
    """Number of devices it was saved on."""
    loss: float | None
    """Mean of the last 32 steps' losses; null if unknown or not finite."""
    bytes: int
    """Size on disk."""
    eval_loss: float | None = None
    """Held-out loss of the last evaluation before it was saved; null if there was none, or it was not finite."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key, best first: the held-out loss, then, of checkpoints without one, the training loss."""
        loss = self.loss if self.eval_loss is None else self.eval_loss
        return self.eval_loss is None, math.inf if loss is None else loss

    @property
    def loss_words(self) -> str:
        """The loss by which checkpoints are ranked: `e 2.3146` if it is held out, else `2.3146`, or nothing."""
        if self.eval_loss is not None:
            return f"e {self.eval_loss:.4f}"
        return "" if self.loss is None else f"{self.loss:.4f}"


class CheckedInfo(Struct, frozen=True, kw_only=True):
    """Result of verifying one checkpoint: every file and array is compared with its digest."""

    step: int
    """Step in the checkpoint's directory name."""
    checkpoint: CheckpointInfo | None
    """Description from its manifest; null if that is damaged or cannot be read."""
    problems: list[str]
    """Each file and array that differs from what was written, or why it cannot be read; empty if it is good."""


class Verification(Struct, frozen=True, kw_only=True):
    """Result of verifying all checkpoints of a run."""

    schema: int = 2
    """Schema version; increases when a field changes its meaning or is removed."""
    directory: str
    """Directory of the checkpoints."""
    checkpoints: list[CheckedInfo]
    """Oldest first."""
    set_aside: list[str]
    """Directory names of damaged and rolled-back checkpoints."""
