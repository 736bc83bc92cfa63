"""Batches of bytes. Batch n is a pure function of (corpus, seed, n): no switch or resume alters what comes next."""

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grain
import numpy as np

from .config import Invalid
from .protocol import CorpusInfo

STANDARD_LIBRARY = "the Python standard library's sources"
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
SNIFFED = 1 << 16
"""Bytes at the start of a file in which a NUL tells that it is not text."""


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
        return _joined(STANDARD_LIBRARY, [path.read_bytes() for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        texts = [text for file in sorted(path.rglob("*")) if file.is_file() and _is_text(text := _read(file))]
        if not texts:
            raise Invalid(f"--data {data}: no text file in that directory: give a directory with at least one")
        return _joined(data, texts)
    if not path.exists():
        raise Invalid(f"--data {data}: no such file or directory")
    text = _read(path)
    if not text:
        raise Invalid(f"--data {data}: the file is empty: give one with text")
    if not _is_text(text):
        raise Invalid(f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED:,}): give a text file")
    return _joined(data, [text])


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


def _joined(source: str, texts: list[bytes]) -> Corpus:
    return Corpus(source, len(texts), np.frombuffer(b"\n".join(texts), np.uint8))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"--data {path}: cannot be read: {error.strerror}") from error


def _is_text(text: bytes) -> bool:
    return bool(text) and b"\0" not in text[:SNIFFED]
