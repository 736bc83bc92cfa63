"""What any Orbax checkpoint says of its arrays."""

from typing import Annotated

from msgspec import Meta, Struct

from .descriptions import ArrayInfo, MeshInfo

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
