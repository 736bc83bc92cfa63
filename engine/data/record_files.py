"""Documents in Parquet files, one in each row, and in ArrayRecord files, one in each record.

A record is UTF-8 text, or a `tf.train.Example` (tensorflow/core/example/{example,feature}.proto) with the text as a
feature. array_record comes with grain, whose own sources read no single row group and name no damaged record.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..base.protobuf import message_class
from ..base.regular_file import open_regular
from ..base.untrusted import refusing
from ..base.user_error import UserError

NOT_UTF8 = "not UTF-8: convert the file, or remove it"
READ_AT_ONCE = 256
ROWS_AT_ONCE = 1024
EXAMPLE = {
    "BytesList": ("bytes* value 1",),
    "Feature": ("BytesList bytes_list 1",),
    "Entry": ("bytes key 1", "Feature value 2"),
    "Features": ("Entry* feature 1",),
    "Example": ("Features features 1",),
}


@dataclass(frozen=True)
class Span:
    """A range of a file: of bytes, or of row groups or records. A line belongs to the span it begins in."""

    path: str
    form: str | None
    """As `form_of` returns it; "json" for a file of one value, "json_lines" for one with a value in each line."""
    begin: int
    end: int
    is_last: bool


def row_groups(path: Path, text_field: str) -> list[int]:
    """Returns the bytes of each row group. Only the footer is read. Raises UserError if there is no column of text."""
    with _parquet(path) as file, refusing(str(path), "damaged"):
        types = file.schema_arrow.types
        values = [getattr(kind, "value_type", kind) if "dictionary" in str(kind) else kind for kind in types]
        kinds = dict(zip(file.schema_arrow.names, map(str, values), strict=True))
        if text_field not in kinds:
            raise UserError(f"{path}: it has no column {text_field}: choose --text-field from {', '.join(kinds)}")
        if kinds[text_field] not in ("string", "large_string", "string_view"):
            raise UserError(
                f"{path}: column {text_field} has {kinds[text_field]}, not text: choose another --text-field"
            )
        return [file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups)]


def rows(span: Span, text_field: str) -> Iterator[str | UserError]:
    """Yields the texts of a row group, an error for each null. Raises UserError; it names the row."""
    path, group, row = span.path, span.begin, 0
    with _parquet(Path(path)) as file:
        with refusing(f"{path}: row group {group}", "damaged"):
            batches = file.iter_batches(row_groups=[group], columns=[text_field], batch_size=ROWS_AT_ONCE)
        while True:
            with refusing(f"{path}: row {row:,} of row group {group}", "damaged"):
                batch = next(batches, None)
                texts = [] if batch is None else batch.column(0).to_pylist()
            if batch is None:
                return
            for text in texts:
                null = UserError(f"{path}: row {row:,} of row group {group}: {text_field} is null")
                yield null if text is None else text
                row += 1


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: needs the package pyarrow: pip install 'shardtui[parquet]'") from error
    with refusing(str(path)):
        source = open_regular(path)
    with source:
        with refusing(str(path), "not a Parquet file, or damaged"):
            file = pyarrow.parquet.ParquetFile(source)
        yield file


def record_count(path: Path) -> int:
    """Returns the number of records. Raises UserError if the file is no ArrayRecord, or truncated."""
    reader = _open_records(path)
    try:
        return reader.num_records()
    finally:
        reader.close()


def records(span: Span, text_field: str) -> Iterator[str | UserError]:
    """Yields the texts of the span's records, an error for each that has none or is damaged."""
    path, reader = span.path, _open_records(Path(span.path))
    try:
        for first in range(span.begin, span.end, READ_AT_ONCE):
            for number, record in enumerate(_read(reader, path, first, min(span.end, first + READ_AT_ONCE)), first):
                yield (
                    record if isinstance(record, UserError) else _text(f"{path}: record {number:,}", record, text_field)
                )
    finally:
        reader.close()


def _open_records(path: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    with refusing(str(path)):
        open_regular(path).close()
        reader = ArrayRecordReader(str(path))
    if not reader.ok():
        raise UserError(f"{path}: not an ArrayRecord file, or truncated: write it again, or remove it")
    return reader


def _read(reader: Any, path: str, begin: int, end: int) -> list[bytes | UserError]:
    """Reads records `[begin:end]`; if one is damaged, one by one, to name it."""
    try:
        return reader.read(begin, end)
    except RuntimeError:
        if end == begin + 1:
            return [UserError(f"{path}: record {begin:,}: damaged: write the file again, or remove it")]
        return [record for number in range(begin, end) for record in _read(reader, path, number, number + 1)]


def _text(where: str, record: bytes, text_field: str) -> str | UserError:
    features = _features(record)
    if features is not None and text_field not in features:
        return UserError(f"{where}: no text in {text_field}: its features are {', '.join(features)}: set --text-field")
    try:
        return (record if features is None else features[text_field]).decode()
    except UnicodeDecodeError as error:
        return UserError(f"{where}: byte {error.start:,}: {NOT_UTF8}")


def _features(record: bytes) -> dict[str, bytes] | None:
    """Returns the bytes of each feature of a `tf.train.Example`; None if the record is none."""
    example = _example()()
    try:
        example.ParseFromString(record)
    except DecodeError:
        return None
    features = example.features.feature
    return {each.key.decode(errors="replace"): b"".join(each.value.bytes_list.value) for each in features} or None


@cache
def _example() -> type[Any]:
    return message_class("shardtui.example", EXAMPLE, "Example")
