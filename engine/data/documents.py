"""Documents in files, divided into parts that are read independently; text and JSON lines are read here."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from ..base.regular_file import NotRegular, open_regular
from ..base.untrusted import decode, refusing
from ..base.user_error import UserError
from ..spec.prepared import form_of
from .record_files import record_count, records, row_groups, rows

PART_BYTES = 64 << 20
"""Bytes of source in a part, which becomes one shard."""
MAX_LINE_BYTES = 1 << 28
PIECE_BYTES = 1 << 20
"""Bytes of text that are encoded at once, up to the end of a line."""
NO_TEXT = "there is no text in it: give text, .jsonl, .parquet or ArrayRecord files"


@dataclass(frozen=True)
class Span:
    """A range of a file: of bytes, or of row groups or records. A line belongs to the span it begins in."""

    path: str
    begin: int
    end: int
    is_last: bool


Part = list[Span]


def parts_of(source: str, text_field: str) -> list[Part]:
    """Divides a file, or the files of a directory in the order of their names. Raises UserError."""
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"{source}: no such file or directory")
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
        raise UserError(f"{source}: {NO_TEXT}")
    return parts


def _spans(path: Path, text_field: str) -> Iterator[tuple[Span, int]]:
    """Yields the spans of a file, each with its size in bytes; none for a file that is not text."""
    form = form_of(path.name)
    if form == "parquet":
        groups = row_groups(path, text_field)
        for group, size in enumerate(groups):
            yield Span(str(path), group, group + 1, group == len(groups) - 1), size
        return
    if form == "array_record":
        yield from _record_spans(path)
        return
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if b"\0" in file.read(1 << 16):
                return
    except NotRegular:
        return
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    for begin in range(0, size, PART_BYTES):
        end = min(size, begin + PART_BYTES)
        yield Span(str(path), begin, end, end == size), end - begin


def _record_spans(path: Path) -> Iterator[tuple[Span, int]]:
    size, count = path.stat().st_size, record_count(path)
    at_once = max(1, count * PART_BYTES // size)
    for begin in range(0, count, at_once):
        end = min(count, begin + at_once)
        yield Span(str(path), begin, end, end == count), size * (end - begin) // count


def pieces(span: Span, text_field: str) -> Iterator[tuple[str, bool]]:
    """Yields the text of a span, and whether a document ends after it. Raises UserError; it names file and record."""
    form = form_of(Path(span.path).name)
    if form == "parquet":
        yield from ((text, True) for text in rows(span.path, span.begin, text_field))
    elif form == "array_record":
        yield from ((text, True) for text in records(span.path, span.begin, span.end, text_field))
    elif form == "json_lines":
        for at, line in _lines(span):
            if line.strip():
                yield _text_of(span.path, at, line, text_field), True
    else:
        yield from _text(span)


def _lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin in the span, each with the byte at which it begins."""
    with refusing(span.path), open_regular(span.path) as file:
        at = span.begin
        if at:
            file.seek(at - 1)
            at += len(_line(span.path, file)) - 1  # the rest of a line of the span before, if only its end
        while at < span.end and (line := _line(span.path, file)):
            yield at, line
            at += len(line)


def _line(path: str, file: BufferedReader) -> bytes:
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{path}: a line has more than {MAX_LINE_BYTES:,} bytes: break it into several")
    return line


def _text(span: Span) -> Iterator[tuple[str, bool]]:
    """Yields whole lines, about `PIECE_BYTES` at once; a file is one document."""
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
        raise UserError(f"{path}: byte {at + error.start:,}: not UTF-8: convert the file, or remove it") from error


def _text_of(path: str, at: int, line: bytes, text_field: str) -> str:
    try:
        record = decode(line, object, "")
    except UserError as error:
        why = f"not JSON: {error.__cause__}"
        raise UserError(f"{path}: line {_number(path, at):,}: {why}: correct or remove it") from error
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        fields = f"its fields are {', '.join(map(str, record))}" if isinstance(record, dict) else "it is no object"
        raise UserError(f"{path}: line {_number(path, at):,}: no text in {text_field}: {fields}: set --text-field")
    return text


def _number(path: str, at: int) -> int:
    with open_regular(Path(path)) as file:
        number = 1
        while at > 0 and (block := file.read(min(at, PIECE_BYTES))):
            number += block.count(b"\n")
            at -= len(block)
    return number
