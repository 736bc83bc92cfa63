"""Documents in Parquet files: one in each row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.invalid import Invalid


def row_groups(path: Path, text_field: str) -> list[int]:
    """Returns the bytes of each row group. Only the footer is read. Raises Invalid if there is no column of text."""
    file = _open(path)
    kinds = dict(zip(file.schema_arrow.names, map(str, file.schema_arrow.types), strict=True))
    if text_field not in kinds:
        raise Invalid(f"{path}: it has no column {text_field}: choose --text-field from {', '.join(kinds)}")
    if kinds[text_field] not in ("string", "large_string", "string_view"):
        raise Invalid(f"{path}: column {text_field} has {kinds[text_field]}, not text: choose another --text-field")
    return [file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups)]


def rows(path: str, group: int, text_field: str) -> Iterator[str]:
    """Yields the texts of a row group. Raises Invalid; it names the row."""
    row, file = 0, _open(Path(path))
    try:
        for batch in file.iter_batches(row_groups=[group], columns=[text_field]):
            for text in batch.column(0).to_pylist():
                if text is None:
                    raise Invalid(f"{path}: row {row:,} of row group {group}: {text_field} is null")
                yield text
                row += 1
    except OSError as error:
        raise Invalid(f"{path}: row {row:,} of row group {group}: damaged: {error}") from error


def _open(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Invalid(f"{path}: needs the package pyarrow: pip install 'shardtui[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise Invalid(f"{path}: not a Parquet file, or damaged: {error}") from error
