"""Documents in text files, JSON lines and Parquet, divided into parts that are read independently."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..base.invalid import Invalid
from ..base.regular_file import NotRegular, open_regular

PART_BYTES = 64 << 20
"""Bytes of source in a part, which becomes one shard."""
PIECE_BYTES = 1 << 20
"""Bytes of text that are encoded at once, up to the end of a line."""
JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"


@dataclass(frozen=True)
class Span:
    """A range of a file: of bytes, or of a Parquet file's row groups. A line belongs to the span it begins in."""

    path: str
    begin: int
    end: int
    is_last: bool
    """Whether it is the last one of its file."""


Part = list[Span]


def parts_of(source: str, text_field: str) -> list[Part]:
    """Divides a file, or the files of a directory in the order of their names. Raises Invalid."""
    path = Path(source).expanduser()
    if not path.exists():
        raise Invalid(f"{source}: no such file or directory")
    files = [found for found in sorted(path.rglob("*")) if found.is_file()] if path.is_dir() else [path]
    parts, filled = list[Part](), PART_BYTES
    for file in files:
        for span, size in _spans(file, text_field):
            if filled + size > PART_BYTES:
                parts.append([])
                filled = 0
            parts[-1].append(span)
            filled += size
    if not parts:
        raise Invalid(f"{source}: there is no text in it: give text, .jsonl or .parquet files")
    return parts


def _spans(path: Path, text_field: str) -> Iterator[tuple[Span, int]]:
    """Yields the spans of a file, each with its size in bytes; none for a file that is not text."""
    if path.suffix == PARQUET:
        yield from _row_groups(path, text_field)
        return
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if b"\0" in file.read(1 << 16):
                return
    except NotRegular:
        return
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from error
    for begin in range(0, size, PART_BYTES):
        end = min(size, begin + PART_BYTES)
        yield Span(str(path), begin, end, end == size), end - begin


def _row_groups(path: Path, text_field: str) -> Iterator[tuple[Span, int]]:
    """Yields a span for each row group. Only the footer is read."""
    file = _parquet(path)
    kinds = dict(zip(file.schema_arrow.names, map(str, file.schema_arrow.types), strict=True))
    if text_field not in kinds:
        raise Invalid(f"{path}: it has no column {text_field}: choose --text-field from {', '.join(kinds)}")
    if kinds[text_field] not in ("string", "large_string", "string_view"):
        raise Invalid(f"{path}: column {text_field} has {kinds[text_field]}, not text: choose another --text-field")
    groups = file.metadata.num_row_groups
    for group in range(groups):
        yield Span(str(path), group, group + 1, group == groups - 1), file.metadata.row_group(group).total_byte_size


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Invalid(f"{path}: needs the package pyarrow: pip install 'shardtui[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise Invalid(f"{path}: not a Parquet file, or damaged: {error}") from error


def pieces(span: Span, text_field: str) -> Iterator[tuple[str, bool]]:
    """Yields the text of a span, and whether a document ends after it. Raises Invalid; it names file and record."""
    path = Path(span.path)
    if path.suffix == PARQUET:
        yield from _rows(span, text_field)
    elif path.suffix in JSON_LINES:
        for at, line in _lines(span):
            if line.strip():
                yield _text_of(span.path, at, line, text_field), True
    else:
        yield from _text(span)


def _rows(span: Span, text_field: str) -> Iterator[tuple[str, bool]]:
    row, file = 0, _parquet(Path(span.path))
    try:
        for batch in file.iter_batches(row_groups=[span.begin], columns=[text_field]):
            for text in batch.column(0).to_pylist():
                if text is None:
                    raise Invalid(f"{span.path}: row {row:,} of row group {span.begin}: {text_field} is null")
                yield text, True
                row += 1
    except OSError as error:
        raise Invalid(f"{span.path}: row {row:,} of row group {span.begin}: damaged: {error}") from error


def _lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin in the span, each with the byte at which it begins."""
    try:
        with open_regular(Path(span.path)) as file:
            at = span.begin
            if at:
                file.seek(at - 1)
                at += len(file.readline()) - 1  # the rest of a line of the span before, if only its end
            while at < span.end and (line := file.readline()):
                yield at, line
                at += len(line)
    except OSError as error:
        raise Invalid(f"{span.path}: cannot be read: {error.strerror}") from error


def _text(span: Span) -> Iterator[tuple[str, bool]]:
    """Yields whole lines, about `PIECE_BYTES` at once; the end of the file is that of the document."""
    lines, size, begin = list[bytes](), 0, span.begin
    for at, line in _lines(span):
        begin = begin if lines else at
        lines.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield _decoded(span.path, begin, lines), False
            lines, size = [], 0
    if lines or span.is_last:
        yield _decoded(span.path, begin, lines), span.is_last


def _decoded(path: str, at: int, lines: Sequence[bytes]) -> str:
    try:
        return b"".join(lines).decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: byte {at + error.start:,}: not UTF-8: convert the file, or remove it") from error


def _text_of(path: str, at: int, line: bytes, text_field: str) -> str:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{path}: line {_number(path, at):,}: not JSON: {error}: correct or remove it") from error
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        fields = f"its fields are {', '.join(map(str, record))}" if isinstance(record, dict) else "it is no object"
        raise Invalid(f"{path}: line {_number(path, at):,}: no text in {text_field}: {fields}: set --text-field")
    return text


def _number(path: str, at: int) -> int:
    """Returns the number of the line that begins at a byte."""
    with open_regular(Path(path)) as file:
        number = 1
        while at > 0 and (block := file.read(min(at, PIECE_BYTES))):
            number += block.count(b"\n")
            at -= len(block)
    return number
