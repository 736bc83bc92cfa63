"""Tokens that stay in their files: of any size, read a window at a time.

They are read with `pread`, not mapped into memory: a mapped file that is truncated kills the process.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from ..base.invalid import Invalid
from ..base.regular_file import open_regular

SAMPLES, SAMPLE_BYTES = 256, 4096
"""Blocks of a corpus that are compared when a run resumes, and their size: a megabyte in all."""
HASHED_BYTES = 1 << 32
"""Text up to this size is hashed completely, as it was when all text was held in memory."""
HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Shard:
    """A file of tokens, or the tokens that join two files."""

    path: Path
    """The file."""
    offset: int
    """Bytes before its first token."""
    size: int
    """Number of tokens."""


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
        """Number of tokens."""

    def __getitem__(self, part: slice) -> np.ndarray:
        """Reads tokens `[begin:end]`. Raises Invalid if a file has changed its size, or cannot be read."""
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
        try:
            with open_regular(shard.path) as file:
                file.seek(shard.offset + at * self.dtype.itemsize)
                read = file.readinto(into.view(np.uint8).data)
        except OSError as error:
            raise Invalid(f"{shard.path}: cannot be read: {error.strerror}") from error
        if read < into.nbytes:
            raise Invalid(
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
