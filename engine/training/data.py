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
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
SNIFFED = 1 << 16
"""Bytes at the start of a file in which a NUL tells that it is not text."""
WORTH_A_WORD = 100_000_000
"""Bytes of text above which the log says that they are being read."""


@dataclass(frozen=True)
class Corpus:
    source: str
    files: int
    tokens: np.ndarray
    """uint8 [bytes]"""

    def describe(self) -> CorpusInfo:
        return CorpusInfo(self.source, self.files, self.tokens.size, hashlib.sha256(self.tokens.data).hexdigest())


def read_corpus(data: str | None) -> Corpus:
    """The bytes of a text file, of a directory's text files by name, or of the standard library. Raises Invalid."""
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts)]
        return _joined(STANDARD_LIBRARY, [_begun(path) for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        texts = _within_memory(data, filter(_is_text, map(_begun, _files_below(path))))
        if not texts:
            raise Invalid(f"--data {data}: no text file in that directory: give a directory with at least one")
        return _joined(data, texts)
    if not path.exists():
        raise Invalid(f"--data {data}: no such file or directory")
    text = _begun(path)
    if text.kind:
        raise Invalid(f"--data {data}: {text.kind}, not a file: give a text file or a directory of them")
    if not text.first:
        raise Invalid(f"--data {data}: the file is empty: give one with text")
    if not _is_text(text):
        raise Invalid(f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED:,}): give a text file")
    return _joined(data, _within_memory(data, [text]))


class Batches:
    """Shuffled windows of the corpus, epoch after epoch. `batches[n]` is batch n, from 0."""

    def __init__(self, corpus: Corpus, batch_size: int, seq_len: int, seed: int) -> None:
        windows = _Windows(corpus.tokens, seq_len)
        if not len(windows):
            raise Invalid(
                f"--data {corpus.source}: {corpus.tokens.size} bytes are shorter than one sequence of "
                f"{seq_len} + 1: give more text or a smaller --seq-len"
            )
        self._dataset = grain.MapDataset.source(windows).seed(seed).shuffle().repeat()
        self._batch_size = batch_size

    def __getitem__(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, each int32 [B, T]; the targets are the inputs one position on."""
        return self.rows(n, range(self._batch_size))

    def rows(self, n: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        """Those rows of batch n; nothing else of it is read."""
        first = n * self._batch_size
        windows = np.asarray([self._dataset[first + row] for row in rows], np.int32)
        return windows[:, :-1], windows[:, 1:]


class _Windows(Sequence[np.ndarray]):
    """Window i is the T + 1 bytes from i·T on: each byte is a target once an epoch."""

    def __init__(self, tokens: np.ndarray, seq_len: int) -> None:
        self._tokens = tokens
        self._seq_len = seq_len

    def __len__(self) -> int:
        return max(0, (self._tokens.size - 1) // self._seq_len)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override] # grain asks for no slices
        start = index * self._seq_len
        return self._tokens[start : start + self._seq_len + 1]


@dataclass(frozen=True)
class _Begun:
    """A file of which only the beginning has been read."""

    path: Path
    first: bytes
    size: int
    """Bytes that are read of it, also where it grows meanwhile."""
    kind: str | None = None
    """What it is instead of a regular file; nothing is read of such a one."""


def _begun(path: Path) -> _Begun:
    try:
        with open_regular(path) as file:
            first = file.read(SNIFFED) or b""  # None where one of /proc has nothing to say yet
            return _Begun(path, first, max(len(first), os.fstat(file.fileno()).st_size))
    except NotRegular as error:
        return _Begun(path, b"", 0, error.kind)
    except OSError as error:
        raise _unreadable(path, error) from error


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _is_text(file: _Begun) -> bool:
    return bool(file.first) and b"\0" not in file.first


def _within_memory(data: str, texts: Iterable[_Begun]) -> list[_Begun]:
    """Raises Invalid as soon as there is more text than half of the memory."""
    most, kept, total = machine_memory() // 2, list[_Begun](), 0
    for text in texts:
        kept.append(text)
        total += text.size
        if total > most:
            raise Invalid(
                f"--data {data}: {size(total)} of text or more, and this machine has {size(2 * most)} of memory, of "
                "which the text may take half: give less of it"
            )
    return kept


def _joined(source: str, texts: list[_Begun]) -> Corpus:
    """The texts with a newline between them, each read once, into its place."""
    total = sum(text.size for text in texts) + max(0, len(texts) - 1)
    if total > WORTH_A_WORD:
        print(f"reading {size(total)} of text from {source}", file=sys.stderr, flush=True)
    tokens, end = np.empty(total, np.uint8), 0
    for index, text in enumerate(texts):
        if index:
            tokens[end] = ord("\n")
            end += 1
        end += _read(text, tokens[end : end + text.size])
    return Corpus(source, len(texts), tokens[:end])


def _read(text: _Begun, into: np.ndarray) -> int:
    """Bytes read: fewer where the file has become shorter."""
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
