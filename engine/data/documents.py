"""Documents in files, divided into parts that are read independently; text, JSON and CSV are read here.

A record without text is yielded as the UserError that names it: who reads decides how many may be skipped.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..base.directories import expanded
from ..base.regular_file import NotRegular, open_regular
from ..base.untrusted import MAX_BYTES, decode
from ..base.user_error import UserError
from ..spec.prepared import form_of, is_document
from .compressed import is_compressed, opened
from .record_files import NOT_UTF8, Span, record_count, records, row_groups, rows

PART_BYTES = 64 << 20
"""Bytes of source in a part, which becomes one shard."""
MAX_LINE_BYTES = 1 << 28
PIECE_BYTES = 1 << 20
"""Bytes of text that are encoded at once, up to the end of a line."""
SNIFFED_BYTES = 1 << 16
MOST_NAMED = 20
"""Names of skipped files, and problems of the records of a shard, that are kept."""
UNKNOWN = 1 << 62
"""The end of a compressed file, which is one span."""
BOM = b"\xef\xbb\xbf"
KINDS = {type(None): "null", bool: "a flag", int: "a number", float: "a number", list: "a list", dict: "an object"}
"""What JSON values are that are no text."""
NO_TEXT = "there is no text in it: give text, .json, .jsonl, .csv, .parquet or ArrayRecord files"


Part = list[Span]


@dataclass
class Sources:
    """The documents of a file or a directory."""

    parts: list[Part] = field(default_factory=list)
    size: int = 0
    """Bytes of its files, skipped ones included."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a file is skipped, by its path."""
    skipped_size: int = 0
    others: list[str] = field(default_factory=list)
    """Files of the directory that are no documents: hidden ones and READMEs."""


class Piece(NamedTuple):
    """A document, or a part of one."""

    text: str
    begins: bool
    ends: bool


def sources_of(source: str, text_field: str) -> Sources:
    """Divides a file, or the files of a directory in the order of their names. Raises UserError."""
    path = expanded(source)
    if not path.exists():
        raise UserError(f"{source}: no such file or directory")
    paths = [found for found in sorted(path.rglob("*")) if not found.is_dir()] if path.is_dir() else [path]
    files = dict.fromkeys(file for file in paths if file == path or is_document(file.relative_to(path)))
    found = Sources(others=[str(file.relative_to(path)) for file in paths if file not in files])
    filled = PART_BYTES
    for file in files:
        try:
            spans = list(_spans(file, text_field))
        except _Skipped as why:
            spans, found.skipped[str(file)] = [], str(why)
            found.skipped_size += file.stat().st_size
        found.size += file.stat().st_size
        for span, size in spans:
            if filled + size > PART_BYTES:
                found.parts.append([])
                filled = 0
            found.parts[-1].append(span)
            filled += size
    if not found.parts:
        why = [f"{file}: {problem}" for file, problem in found.skipped.items()]
        raise UserError(f"{source}: {NO_TEXT}", *why[:MOST_NAMED])
    return found


class _Skipped(Exception):
    """A file has no text."""


def _spans(path: Path, text_field: str) -> Iterator[tuple[Span, int]]:
    """Yields the spans of a file, each with its size in bytes. Raises _Skipped."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except NotRegular as error:
        raise _Skipped(error.kind) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    form = form_of(path.name)
    if form == "parquet":
        groups = row_groups(path, text_field)
        for group, size in enumerate(groups):
            yield Span(str(path), form, group, group + 1, group == len(groups) - 1), size
    elif form == "array_record":
        yield from _record_spans(path, size)
    else:
        yield from _text_spans(path, form, size)


def _record_spans(path: Path, size: int) -> Iterator[tuple[Span, int]]:
    count = record_count(path)
    at_once = max(1, count * PART_BYTES // size)
    for begin in range(0, count, at_once):
        end = min(count, begin + at_once)
        yield Span(str(path), "array_record", begin, end, end == count), size * (end - begin) // count


def _text_spans(path: Path, form: str | None, size: int) -> Iterator[tuple[Span, int]]:
    is_whole = is_compressed(path)
    with opened(path) as file:
        start = file.read(SNIFFED_BYTES) or b""  # None if a file of /proc has no data yet
    if b"\0" in start:
        if form or is_whole:
            raise UserError(f"{path}: not UTF-8 text, it has a NUL byte: convert the file, or remove it")
        raise _Skipped("not text, it has a NUL byte")
    if form == "json" and not _is_one_value(start):
        form = "json_lines"
    if form in ("json", "csv") or is_whole:
        yield Span(str(path), form, 0, UNKNOWN, True), size
        return
    for begin in range(0, size, PART_BYTES):
        end = min(size, begin + PART_BYTES)
        yield Span(str(path), form, begin, end, end == size), end - begin


def _is_one_value(start: bytes) -> bool:
    """Whether a JSON file is an array, or an object over several lines, by its first bytes."""
    first, ends, _ = start.removeprefix(BOM).lstrip().partition(b"\n")
    return first.startswith(b"[") or (bool(ends) and not first.rstrip().endswith(b"}"))


def pieces(span: Span, text_field: str) -> Iterator[Piece | UserError]:
    """Yields the text of a span, and an error for each record without text. Raises UserError; it names file and
    record."""
    if span.form is None:
        yield from _text(span)
        return
    readers = {"parquet": rows, "array_record": records, "json_lines": _json_lines, "json": _json, "csv": _csv}
    found = readers[span.form]
    yield from (text if isinstance(text, UserError) else Piece(text, True, True) for text in found(span, text_field))


def _json_lines(span: Span, text_field: str) -> Iterator[str | UserError]:
    first = None
    for number, (at, line) in enumerate(_lines(span)):
        first = at if first is None else first
        if line.strip():
            found = _text_of(line, text_field)
            where = f"{span.path}: line {_number(span.path, first) + number:,}: " if isinstance(found, _NoText) else ""
            yield UserError(f"{where}{found}") if isinstance(found, _NoText) else found


def _json(span: Span, text_field: str) -> Iterator[str | UserError]:
    """Reads an array of records, or one."""
    with opened(span.path) as file:
        content = file.read(MAX_BYTES + 1).removeprefix(BOM)
    if len(content) > MAX_BYTES:
        raise UserError(f"{span.path}: a JSON value of more than {MAX_BYTES:,} bytes: convert it to JSON lines")
    value = decode(content, object, span.path, "correct or remove it")
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        found = _field(record, text_field)
        yield UserError(f"{span.path}: record {number:,}: {found}") if isinstance(found, _NoText) else found


def _csv(span: Span, text_field: str) -> Iterator[str | UserError]:
    """Reads a column of a table whose first line names its columns. Raises UserError, also for an open quote."""
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (_decoded(span.path, at, [line]) for at, line in _lines(span))
    table = csv.reader(lines, delimiter="\t" if ".tsv" in Path(span.path).suffixes else ",", strict=True)
    try:
        columns = next(table, [])
        if text_field not in columns:
            known = ", ".join(name[:MOST_NAMED] for name in columns[:MOST_NAMED])
            raise UserError(f"{span.path}: it has no column {text_field}: choose --text-field from {known}")
        for row in filter(None, table):
            where, counts = f"{span.path}: line {table.line_num:,}", f"{len(row)} columns instead of {len(columns)}"
            is_whole = len(row) == len(columns)
            yield row[columns.index(text_field)] if is_whole else UserError(f"{where}: {counts}: correct or remove it")
    except csv.Error as error:
        raise UserError(f"{span.path}: line {table.line_num:,}: not CSV: {error}: correct or remove it") from error


def _lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin in the span, each with the byte at which it begins."""
    with opened(span.path) as file:
        at = span.begin
        if at:
            file.seek(at - 1)
            at += len(_line(span.path, file)) - 1  # the rest of a line of the span before, if only its end
        while at < span.end and (line := _line(span.path, file)):
            yield at, line if at else line.removeprefix(BOM)
            at += len(line)


def _line(path: str, file: BinaryIO) -> bytes:
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{path}: a line has more than {MAX_LINE_BYTES:,} bytes: break it into several")
    return line


def _text(span: Span) -> Iterator[Piece]:
    """Yields whole lines, about `PIECE_BYTES` at once; a file is one document."""
    lines, size, begin, begins = list[bytes](), 0, span.begin, not span.begin
    for at, line in _lines(span):
        begin = begin if lines else at
        lines.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield Piece(_decoded(span.path, begin, lines), begins, False)
            lines, size, begins = [], 0, False
    if lines or span.is_last:
        yield Piece(_decoded(span.path, begin, lines), begins, span.is_last)


def _decoded(path: str, at: int, lines: Sequence[bytes]) -> str:
    try:
        return b"".join(lines).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {at + error.start:,}: {NOT_UTF8}") from error


class _NoText(str):
    """Why a record has no text."""


def _text_of(line: bytes, text_field: str) -> str | _NoText:
    try:
        return _field(decode(line, object, ""), text_field)
    except UserError as error:
        return _NoText(f"not JSON: {error.__cause__}: correct or remove it")


def _field(record: object, text_field: str) -> str | _NoText:
    if not isinstance(record, dict):
        return _NoText(f"no text in {text_field}: it is no object: correct or remove it")
    if text_field not in record:
        return _NoText(f"no text in {text_field}: its fields are {', '.join(map(str, record))}: set --text-field")
    text = record[text_field]
    return text if isinstance(text, str) else _NoText(f"{text_field} is {KINDS[type(text)]}: correct or remove it")


@lru_cache(8)
def _number(path: str, at: int) -> int:
    """Returns the number of the line that begins at a byte."""
    with opened(path) as file:
        number = 1
        while at > 0 and (block := file.read(min(at, PIECE_BYTES))):
            number += block.count(b"\n")
            at -= len(block)
    return number
