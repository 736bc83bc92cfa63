"""Reads text: a file, a directory of files, or the sources of Python's standard library."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.figures import size
from ..base.invalid import Invalid
from ..base.regular_file import NotRegular, open_regular, read_regular
from .corpus import HASHED_BYTES, Corpus, Shard, StoredTokens

STANDARD_LIBRARY = "the Python standard library's sources"
EXCLUDED_DIRECTORIES = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
SNIFFED_BYTES = 1 << 16
LARGE_CORPUS_BYTES = 100_000_000
"""Bytes of text above which it stays in its files; the log announces that it is being hashed."""


def read_text(data: str | None) -> Corpus:
    """Reads a text file, a directory's text files by name, or by default the standard library. Raises Invalid if there
    is no text."""
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [
            path for path in sorted(root.rglob("*.py")) if not EXCLUDED_DIRECTORIES & set(path.relative_to(root).parts)
        ]
        return _join(STANDARD_LIBRARY, [_sniff(path) for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        texts = [text for text in map(_sniff, _files_below(path)) if text.is_text]
        if not texts:
            raise Invalid(f"--data {data}: no text file in that directory: give a directory with at least one")
        return _join(data, texts)
    if not path.exists():
        raise Invalid(f"--data {data}: no such file or directory")
    text = _sniff(path)
    if text.kind:
        raise Invalid(f"--data {data}: {text.kind}, not a file: give a text file or a directory of text files")
    if not text.size:
        raise Invalid(f"--data {data}: the file is empty: give one with text")
    if not text.is_text:
        raise Invalid(
            f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED_BYTES:,}): give a text file, or "
            "name it .parquet or .arrayrecord if it is one"
        )
    return _join(data, [text])


@dataclass(frozen=True)
class _Sniffed:
    path: Path
    size: int
    """Bytes to read, even if the file grows."""
    is_text: bool
    """Whether it has content without a NUL byte at its start."""
    kind: str | None = None
    """Of a file that is not regular, such as `a FIFO`; nothing of it is read."""


def _sniff(path: Path) -> _Sniffed:
    try:
        with open_regular(path) as file:
            first = file.read(SNIFFED_BYTES) or b""  # None if a file of /proc has no data yet
            size = max(len(first), os.fstat(file.fileno()).st_size)
            return _Sniffed(path, size, bool(first) and b"\0" not in first)
    except NotRegular as error:
        return _Sniffed(path, 0, False, error.kind)
    except OSError as error:
        raise _unreadable(path, error) from error


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _join(source: str, texts: list[_Sniffed]) -> Corpus:
    """Returns the texts joined by newlines: in memory, or left in their files if they are large."""
    total = sum(text.size for text in texts) + max(0, len(texts) - 1)
    if total <= LARGE_CORPUS_BYTES:
        tokens = b"\n".join(_content(text.path) for text in texts)
        return Corpus(source, len(texts), np.frombuffer(tokens, np.uint8))
    if total <= HASHED_BYTES:
        print(f"reading {size(total)} of text from {source}", file=sys.stderr, flush=True)
    shards = [Shard(text.path, 0, text.size) for text in texts]
    return Corpus(source, len(texts), StoredTokens(shards, np.dtype(np.uint8), b"\n"))


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> Invalid:
    return Invalid(f"--data {path}: cannot be read: {error.strerror}")
