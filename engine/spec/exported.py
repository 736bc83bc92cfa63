"""The request and the answer of `shardtui export`. No numpy here."""

from typing import Literal

from msgspec import Struct

Dtype = Literal["float32", "bfloat16", "float16"]


class ExportRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint to export, and the directory for it."""

    run: str
    out: str
    """A directory that does not exist yet or is empty."""
    step: int | None = None
    """None for the newest intact checkpoint."""
    dtype: Dtype | None = None
    """None for the dtype of the run's initial weights, or float32."""


class Exported(Struct, frozen=True, kw_only=True):
    """A model that `transformers` loads."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    directory: str
    """The directory."""
    step: int
    """Steps that the model was trained."""
    architecture: str
    """The class of `transformers` that loads it."""
    dtype: Dtype
    """Dtype of the tensors; parameters are trained in float32."""
    parameters: int
    """Elements of all tensors."""
    bytes: int
    """Size of the tensors."""
    files: list[str]
    """The files, by name."""
    tokenizer: str | None
    """The tokenizer's file; null if the run read bytes, or its data do not have one."""
