"""The tokens of a run and where they come from."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from ..base.invalid import Invalid
from ..spec.prepared import rows_of
from ..wire.descriptions import CorpusInfo
from .stored_tokens import StoredTokens


@dataclass(frozen=True)
class Corpus:
    """The training data, or their held-out part."""

    source: str
    """The path as given, or `STANDARD_LIBRARY`."""
    files: int
    """Number of files."""
    tokens: np.ndarray | StoredTokens
    """All tokens: text has one per byte, uint8 `[bytes]`."""
    option: str = "--data"
    """The option that named it, for messages."""
    begin: int = 0
    """The first of the tokens that belong to it."""
    end: int | None = None
    """The first after them; None for all up to the last one."""
    vocab: int | None = None
    """Size of the vocabulary of its tokenizer; None if unknown, and for text."""

    @property
    def size(self) -> int:
        """The number of its tokens."""
        return (self.tokens.size if self.end is None else self.end) - self.begin

    @property
    def unit(self) -> str:
        """What its tokens are called."""
        return "bytes" if self.tokens.dtype == np.uint8 else "tokens"

    def read(self, begin: int, end: int) -> np.ndarray:
        """Returns its tokens `[begin:end]`. Raises Invalid if a file has changed."""
        return self.tokens[self.begin + begin : self.begin + end]

    def describe(self) -> CorpusInfo:
        """Returns its source, its size and its SHA-256, which a resumed run compares."""
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
        """Returns what to train on, and the last `share` of the tokens, which is held out."""
        at = self.size - int(self.size * share)
        return replace(self, end=at), replace(self, begin=at, option=f"--eval-share {share:g} of {self.option}")

    def check_samples(self, vocab: int) -> None:
        """Raises Invalid if the tokenizer has more tokens than the model's vocabulary, or a sample has one past it."""
        if self.vocab and self.vocab > vocab:
            raise Invalid(
                f"{self.option} {self.source}: its tokenizer has {self.vocab:,} tokens, but the model has a vocabulary "
                f"of {vocab:,}: add --set vocab={self.vocab} --set vocab_rows={rows_of(self.vocab)}"
            )
        if isinstance(self.tokens, StoredTokens) and self.unit == "tokens":
            for begin, block in self.tokens.samples():
                self.check(begin - self.begin, block, vocab)

    def check(self, begin: int, tokens: np.ndarray, vocab: int) -> None:
        """Raises Invalid if one of `tokens`, read from `begin` on, is not in the vocabulary; it names its place."""
        if isinstance(self.tokens, np.ndarray) or (tokens.min() >= 0 and tokens.max() < vocab):
            return
        wrong = int(np.argmax((tokens < 0) | (tokens >= vocab)))
        raise Invalid(
            f"{self.option} {self.tokens.place(self.begin + begin + wrong)} is {tokens[wrong]}, but the model has a "
            f"vocabulary of {vocab:,}: set vocab and vocab_rows above the largest token, or give the data of another "
            "tokenizer"
        )
