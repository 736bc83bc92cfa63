"""Batches of tokens. Batch n is a pure function of (corpus, seed, n): no switch or resume changes it."""

from collections.abc import Sequence

import grain
import numpy as np

from ..base.user_error import UserError
from .corpus import Corpus


class Batches:
    """Windows of the corpus, reshuffled each epoch, without memory for the order; `batches[n]` is batch n, from 0."""

    def __init__(self, corpus: Corpus, batch_size: int, seq_len: int, seed: int, vocab: int | None = None) -> None:
        """`vocab`: tokens from it on are refused; None accepts all. Raises UserError for less than one window."""
        windows = _Windows(corpus, seq_len, vocab)
        if not len(windows):
            raise UserError(
                f"{corpus.option} {corpus.source}: {corpus.size} {corpus.unit} are fewer than one sequence of "
                f"{seq_len} + 1: give more data or a smaller --seq-len"
            )
        self._dataset = grain.MapDataset.source(windows).seed(seed).shuffle().repeat()
        self._batch_size = batch_size
        self.full_batches = len(windows) // batch_size
        """Batches without a repeated sequence."""

    def __getitem__(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and targets, int32 `[batch, seq]`. Raises UserError for a changed file or an unknown token."""
        return self.rows(n, range(self._batch_size))

    def rows(self, n: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        """Returns these rows of batch n as inputs and targets, int32 `[rows, seq]`; reads no other rows."""
        first = n * self._batch_size
        windows = np.asarray([self._dataset[first + row] for row in rows], np.int32)
        return windows[:, :-1], windows[:, 1:]


class _Windows(Sequence[np.ndarray]):
    """Window i is the T + 1 tokens that start at i·T, so that each token is a target once per epoch."""

    def __init__(self, corpus: Corpus, seq_len: int, vocab: int | None) -> None:
        self._corpus, self._seq_len, self._vocab = corpus, seq_len, vocab

    def __len__(self) -> int:
        return max(0, (self._corpus.size - 1) // self._seq_len)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override] # grain asks for no slices
        start = index * self._seq_len
        tokens = self._corpus.read(start, start + self._seq_len + 1)
        if self._vocab is not None:
            self._corpus.check(start, tokens, self._vocab)
        return tokens
