"""Descriptions of checkpoints."""

import math
from typing import Annotated

from msgspec import Meta, Struct

from .descriptions import ArrayInfo, MeshInfo


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


MAX_DIMS = 64
Shape = Annotated[list[Annotated[int, Meta(ge=0, lt=2**48)]], Meta(max_length=MAX_DIMS)]


class StoredArray(ArrayInfo, frozen=True, kw_only=True):
    """An array of a checkpoint, as it was saved. `compiled_spec` and `spec` are its layout then."""

    mesh: int | None
    """Index in `meshes`; null if it was saved from a single device or the host, or without its sharding."""


class Placed(Struct, frozen=True, kw_only=True):
    """A checkpoint's arrays under a preset. Nothing is compiled."""

    preset: str
    """The preset's name."""
    model: str
    """The model whose names and logical axes the arrays have."""
    mesh: MeshInfo
    """The preset's mesh, on as many devices as `--devices` or the largest mesh of the checkpoint has."""
    arrays: list[ArrayInfo]
    """The arrays that the model names."""
    unnamed: list[str]
    """Arrays with dims whose names are not the model's: no rule says how they would lie."""
    problems: list[str]
    """Dims that the preset's mesh axes do not divide, one line each."""


class StoredCheckpoint(Struct, frozen=True, kw_only=True):
    """An Orbax checkpoint, from its metadata. No values are read, and nothing is unpickled or run."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    directory: str
    """The directory of the step, or of the only item."""
    newest_of: int
    """Number of steps in the given directory, whose newest is shown; 0 if it is a step itself."""
    items: list[str]
    """Items with arrays, as paths in `directory`; an empty path if it is the item itself."""
    meshes: list[MeshInfo]
    """The meshes that arrays were saved on, with the device ids of then."""
    arrays: list[StoredArray]
    """All arrays, by item and name."""
    problems: list[str]
    """What is damaged, missing or incomplete, one line each."""
    placed: Placed | None = None
    """The arrays under another preset; null without `--preset`."""
