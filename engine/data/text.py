"""Reads text: a file, a directory of files, or the sources of Python's standard library."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..base.figures import size
from ..base.invalid import Invalid
from ..base.regular_file import NotRegular, open_regular
from .corpus import HASHED_BYTES, Corpus, Shard, StoredTokens

STANDARD_LIBRARY = "the Python standard library's sources"
EXCLUDED_DIRECTORIES = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
SNIFFED_BYTES = 1 << 16
"""Bytes at the start of a file that are searched for a NUL, which marks a file that is not text."""
LARGE_CORPUS_BYTES = 100_000_000
"""Bytes of text above which it stays in its files; the log announces that it is being hashed."""


def read_text(data: str | None) -> Corpus:
    """Reads a text file, a directory's text files in the order of their names, or by default the standard library.

    Raises Invalid if there is no text.
    """
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [
            path for path in sorted(root.rglob("*.py")) if not EXCLUDED_DIRECTORIES & set(path.relative_to(root).parts)
        ]
        return _join(STANDARD_LIBRARY, [_read_start(path) for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        texts = _without_starts(filter(_is_text, map(_read_start, _files_below(path))))
        if not texts:
            raise Invalid(f"--data {data}: no text file in that directory: give a directory with at least one")
        return _join(data, texts)
    if not path.exists():
        raise Invalid(f"--data {data}: no such file or directory")
    text = _read_start(path)
    if text.kind:
        raise Invalid(f"--data {data}: {text.kind}, not a file: give a text file or a directory of text files")
    if not text.first:
        raise Invalid(f"--data {data}: the file is empty: give one with text")
    if not _is_text(text):
        raise Invalid(
            f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED_BYTES:,}): give a text file, or "
            "name it .parquet or .arrayrecord if it is one"
        )
    return _join(data, _without_starts([text]))


@dataclass(frozen=True)
class _TextFile:
    """A file, and its start."""

    path: Path
    first: bytes
    size: int
    """Bytes to read, even if the file grows in the meantime."""
    kind: str | None = None
    """The kind of a file that is not regular, such as `a FIFO`; nothing of it is read. Else None."""


def _read_start(path: Path) -> _TextFile:
    try:
        with open_regular(path) as file:
            first = file.read(SNIFFED_BYTES) or b""  # None if a file of /proc has no data yet
            return _TextFile(path, first, max(len(first), os.fstat(file.fileno()).st_size))
    except NotRegular as error:
        return _TextFile(path, b"", 0, error.kind)
    except OSError as error:
        raise _unreadable(path, error) from error


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _is_text(file: _TextFile) -> bool:
    return bool(file.first) and b"\0" not in file.first


def _without_starts(texts: Iterable[_TextFile]) -> list[_TextFile]:
    """Returns the texts, without the starts of files that are read later: a million starts take 64 GB."""
    kept, total = list[_TextFile](), 0
    for text in texts:
        total += text.size
        kept.append(text if total <= LARGE_CORPUS_BYTES else replace(text, first=b""))
    return kept


def _join(source: str, texts: list[_TextFile]) -> Corpus:
    """Returns the texts joined by newlines: read once, directly into one array, or left in their files if large."""
    total = sum(text.size for text in texts) + max(0, len(texts) - 1)
    if total > LARGE_CORPUS_BYTES:
        if total <= HASHED_BYTES:
            print(f"reading {size(total)} of text from {source}", file=sys.stderr, flush=True)
        shards = [Shard(text.path, 0, text.size) for text in texts]
        return Corpus(source, len(texts), StoredTokens(shards, np.dtype(np.uint8), b"\n"))
    tokens, end = np.empty(total, np.uint8), 0
    for index, text in enumerate(texts):
        if index:
            tokens[end] = ord("\n")
            end += 1
        end += _read(text, tokens[end : end + text.size])
    return Corpus(source, len(texts), tokens[:end])


def _read(text: _TextFile, into: np.ndarray) -> int:
    """Returns the bytes read: fewer than `text.size` if the file has been truncated."""
    end = len(text.first)
    into[:end] = np.frombuffer(text.first, np.uint8)
    if end == text.size:
        return end
    try:
        with open_regular(text.path) as file:
            file.seek(end)
            return end + file.readinto(into[end:].data)
    except OSError as error:
        raise _unreadable(text.path, error) from error


def _unreadable(path: Path, error: OSError) -> Invalid:
    return Invalid(f"--data {path}: cannot be read: {error.strerror}")
