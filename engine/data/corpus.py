"""The tokens of a run: in memory, or in their files, which may have any size.

Files are read with `pread`, not mapped into memory: a mapped file that is truncated kills the process.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from ..base.regular_file import open_regular
from ..base.untrusted import refusing
from ..base.user_error import UserError
from ..spec.prepared import rows_of
from ..wire.descriptions import CorpusInfo

SAMPLES, SAMPLE_BYTES = 256, 4096
"""Blocks of a corpus that are compared when a run resumes, and their size: a megabyte in all."""
HASHED_BYTES = 1 << 32
"""Text up to this size is hashed completely."""
HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Shard:
    """A file of tokens."""

    path: Path
    offset: int
    """Bytes before its first token."""
    size: int


class StoredTokens:
    """The tokens of several files in a row; `tokens[begin:end]` reads them as an array."""

    def __init__(
        self, shards: Sequence[Shard], dtype: np.dtype, separator: bytes = b"", written: str | None = None
    ) -> None:
        """`separator`: at most one token between two files. `written`: SHA-256 by the program that wrote them."""
        self.dtype = dtype
        self._shards, self._separator, self._written = shards, separator, written
        self._starts = [0, *accumulate(shard.size + len(separator) for shard in shards)]
        self.size = max(0, self._starts[-1] - len(separator))

    def __getitem__(self, part: slice) -> np.ndarray:
        """Reads tokens `[begin:end]`. Raises UserError if a file has changed its size, or cannot be read."""
        begin, end, _ = part.indices(self.size)
        found = np.empty(max(0, end - begin), self.dtype)
        while begin < end:
            index = bisect_right(self._starts, begin) - 1
            shard, start = self._shards[index], self._starts[index]
            into = found[len(found) - (end - begin) :][: self._starts[index + 1] - begin]
            in_file = max(0, min(len(into), start + shard.size - begin))
            if in_file:
                self._read(shard, begin - start, into[:in_file])
            into[in_file:] = np.frombuffer(self._separator, self.dtype)[: len(into) - in_file]
            begin += len(into)
        return found

    def _read(self, shard: Shard, at: int, into: np.ndarray) -> None:
        with refusing(str(shard.path)), open_regular(shard.path) as file:
            file.seek(shard.offset + at * self.dtype.itemsize)
            read = file.readinto(into.view(np.uint8).data)
        if read < into.nbytes:
            raise UserError(
                f"{shard.path}: ends before token {at + len(into):,}, but had {shard.size:,} when the run started: "
                "restore the file, then resume"
            )

    def place(self, index: int) -> str:
        """Returns where a token is, for messages: the file, and the number of the token in it, from 0."""
        shard = bisect_right(self._starts, index) - 1
        return f"{self._shards[shard].path}: token {index - self._starts[shard]:,}"

    def samples(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields `SAMPLES` blocks at equal distances, from the first token to the last, each with its first index."""
        length = min(self.size, SAMPLE_BYTES // self.dtype.itemsize)
        for begin in sorted({(self.size - length) * number // (SAMPLES - 1) for number in range(SAMPLES)}):
            yield begin, self[begin : begin + length]

    def sha256(self) -> str:
        """Returns the SHA-256 of all bytes of text up to `HASHED_BYTES`, else of the files' sizes and the samples."""
        digest = hashlib.sha256()
        if self._written is None and self.dtype == np.uint8 and self.size <= HASHED_BYTES:
            for begin in range(0, self.size, HASHED_AT_ONCE):
                digest.update(self[begin : begin + HASHED_AT_ONCE].data)
            return digest.hexdigest()
        digest.update(f"{self._written or ''} {self.dtype.str} {[shard.size for shard in self._shards]}".encode())
        for _, block in self.samples():
            digest.update(block.data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Corpus:
    """The training data, or their held-out part."""

    source: str
    files: int
    tokens: np.ndarray | StoredTokens
    """All tokens: text has one per byte, uint8 `[bytes]`."""
    option: str = "--data"
    begin: int = 0
    end: int | None = None
    """The first token after it; None for all."""
    vocab: int | None = None
    """Size of its tokenizer's vocabulary; None if unknown, and for text."""

    @property
    def size(self) -> int:
        return (self.tokens.size if self.end is None else self.end) - self.begin

    @property
    def unit(self) -> str:
        return "bytes" if self.tokens.dtype == np.uint8 else "tokens"

    def read(self, begin: int, end: int) -> np.ndarray:
        return self.tokens[self.begin + begin : self.begin + end]

    def describe(self) -> CorpusInfo:
        count = 0 if self.unit == "bytes" else self.size
        return CorpusInfo(self.source, self.files, self.size * self.tokens.dtype.itemsize, self._sha256(), count)

    def _sha256(self) -> str:
        if isinstance(self.tokens, np.ndarray):
            return hashlib.sha256(self.read(0, self.size).data).hexdigest()
        whole = self.tokens.sha256()
        if self.size == self.tokens.size:
            return whole
        return hashlib.sha256(f"{whole} {self.begin} {self.size}".encode()).hexdigest()

    def split(self, share: float) -> tuple["Corpus", "Corpus"]:
        at = self.size - int(self.size * share)
        return replace(self, end=at), replace(self, begin=at, option=f"--eval-share {share:g} of {self.option}")

    def check_samples(self, vocab: int) -> None:
        """Raises UserError if the tokenizer or a sample has tokens beyond the model's vocabulary."""
        if self.vocab and self.vocab > vocab:
            raise UserError(
                f"{self.option} {self.source}: its tokenizer has {self.vocab:,} tokens, but the model has a vocabulary "
                f"of {vocab:,}: add --set vocab={self.vocab} --set vocab_rows={rows_of(self.vocab)}"
            )
        if isinstance(self.tokens, StoredTokens) and self.unit == "tokens":
            for begin, block in self.tokens.samples():
                self.check(begin - self.begin, block, vocab)

    def check(self, begin: int, tokens: np.ndarray, vocab: int) -> None:
        """Raises UserError, with its place, if one of `tokens`, read from `begin` on, is not in the vocabulary."""
        if isinstance(self.tokens, np.ndarray) or (tokens.min() >= 0 and tokens.max() < vocab):
            return
        wrong = int(np.argmax((tokens < 0) | (tokens >= vocab)))
        raise UserError(
            f"{self.option} {self.tokens.place(self.begin + begin + wrong)} is {tokens[wrong]}, but the model has a "
            f"vocabulary of {vocab:,}: set vocab and vocab_rows above the largest token, or give the data of another "
            "tokenizer"
        )
