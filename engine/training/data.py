"""Batches of bytes. Batch n is a pure function of (corpus, seed, n): no switch or resume alters what comes next."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grain
import numpy as np

from ..base.figures import size
from ..base.invalid import Invalid
from ..base.machine import machine_memory
from ..base.regular_file import NotRegular, open_regular
from ..wire.descriptions import CorpusInfo

STANDARD_LIBRARY = "the Python standard library's sources"
EXCLUDED_DIRECTORIES = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
SNIFFED_BYTES = 1 << 16
"""Bytes at the start of a file that are searched for a NUL, which marks a file that is not text."""
LARGE_CORPUS_BYTES = 100_000_000
"""Bytes of text above which the log announces that they are being read."""


@dataclass(frozen=True)
class Corpus:
    """The training text, one token per byte."""

    source: str
    """The path as given, or `STANDARD_LIBRARY`."""
    files: int
    """Number of files that were read."""
    tokens: np.ndarray
    """Bytes of all files, uint8 `[bytes]`."""

    def describe(self) -> CorpusInfo:
        """Returns its source, its size and its SHA-256, which a resumed run compares."""
        return CorpusInfo(self.source, self.files, self.tokens.size, hashlib.sha256(self.tokens.data).hexdigest())


def read_corpus(data: str | None) -> Corpus:
    """Reads a text file, a directory's text files in the order of their names, or by default the standard library.

    Raises Invalid if there is no text, or more than half of the machine's memory.
    """
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [
            path for path in sorted(root.rglob("*.py")) if not EXCLUDED_DIRECTORIES & set(path.relative_to(root).parts)
        ]
        return _join(STANDARD_LIBRARY, [_read_start(path) for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        texts = _within_memory(data, filter(_is_text, map(_read_start, _files_below(path))))
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
            f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED_BYTES:,}): give a text file"
        )
    return _join(data, _within_memory(data, [text]))


class Batches:
    """Windows of the corpus, reshuffled each epoch; `batches[n]` is batch n, counted from 0."""

    def __init__(self, corpus: Corpus, batch_size: int, seq_len: int, seed: int) -> None:
        """Raises Invalid if the corpus is shorter than one sequence."""
        windows = _Windows(corpus.tokens, seq_len)
        if not len(windows):
            raise Invalid(
                f"--data {corpus.source}: {corpus.tokens.size} bytes are fewer than one sequence of "
                f"{seq_len} + 1: give more text or a smaller --seq-len"
            )
        self._dataset = grain.MapDataset.source(windows).seed(seed).shuffle().repeat()
        self._batch_size = batch_size

    def __getitem__(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and targets, each int32 `[batch, seq]`; the targets are the inputs shifted by one position."""
        return self.rows(n, range(self._batch_size))

    def rows(self, n: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        """Returns these rows of batch n as inputs and targets, int32 `[rows, seq]`; reads no other rows."""
        first = n * self._batch_size
        windows = np.asarray([self._dataset[first + row] for row in rows], np.int32)
        return windows[:, :-1], windows[:, 1:]


class _Windows(Sequence[np.ndarray]):
    """Window i is the T + 1 bytes that start at i·T, so that each byte is a target once per epoch."""

    def __init__(self, tokens: np.ndarray, seq_len: int) -> None:
        self._tokens = tokens
        self._seq_len = seq_len

    def __len__(self) -> int:
        return max(0, (self._tokens.size - 1) // self._seq_len)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override] # grain asks for no slices
        start = index * self._seq_len
        return self._tokens[start : start + self._seq_len + 1]


@dataclass(frozen=True)
class _TextFile:
    """A file of which only the start has been read."""

    path: Path
    first: bytes
    size: int
    """Bytes to read, even if the file grows in the meantime."""
    kind: str | None = None
    """What it is instead of a regular file, such as `a FIFO`, of which nothing is read; else None."""


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


def _within_memory(data: str, texts: Iterable[_TextFile]) -> list[_TextFile]:
    """Returns the texts. Raises Invalid as soon as they are larger than half of the machine's memory."""
    most, kept, total = machine_memory() // 2, list[_TextFile](), 0
    for text in texts:
        kept.append(text)
        total += text.size
        if total > most:
            raise Invalid(
                f"--data {data}: {size(total)} of text or more, but this machine has {size(2 * most)} of memory, of "
                "which the text may use half: give less text"
            )
    return kept


def _join(source: str, texts: list[_TextFile]) -> Corpus:
    """Returns the texts joined by newlines, each read once, directly into one array."""
    total = sum(text.size for text in texts) + max(0, len(texts) - 1)
    if total > LARGE_CORPUS_BYTES:
        print(f"reading {size(total)} of text from {source}", file=sys.stderr, flush=True)
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
