"""Batches are a function of (corpus, seed, n); what cannot be text is refused."""

from pathlib import Path

import numpy as np
import pytest
from shardtui.engine.config import Invalid
from shardtui.engine.data import Batches, read_corpus


def batches(path: Path, seed: int = 0, batch_size: int = 4, seq_len: int = 8) -> Batches:
    return Batches(read_corpus(str(path)), batch_size, seq_len, seed)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(1, 251)) * 4)
    return path


def test_batch_n_is_a_pure_function(text: Path) -> None:
    in_order, again = batches(text), batches(text)
    expected = [in_order[n] for n in range(70)]
    for n in (69, 3, 3, 40):
        np.testing.assert_array_equal(again[n][0], expected[n][0])
    assert any((batches(text, seed=1)[n][0] != expected[n][0]).any() for n in range(3))


def test_targets_are_the_next_bytes_of_the_corpus(text: Path) -> None:
    corpus = text.read_bytes()
    inputs, targets = batches(text)[0]
    assert inputs.shape == targets.shape == (4, 8)
    assert inputs.dtype == np.int32
    for row, shifted in zip(inputs, targets, strict=True):
        assert bytes([*row, shifted[-1]].__iter__()) in corpus
        np.testing.assert_array_equal(row[1:], shifted[:-1])


def test_an_epoch_holds_every_window_once(text: Path) -> None:
    each = batches(text, batch_size=1)
    windows = (text.stat().st_size - 1) // 8
    seen = sorted(each[n][0][0].tobytes() for n in range(windows))
    again = sorted(each[n][0][0].tobytes() for n in range(windows, 2 * windows))
    assert seen == again
    first, second = ([each[n][0].tobytes() for n in range(start, start + windows)] for start in (0, windows))
    assert first != second


def test_the_default_corpus_is_the_standard_library() -> None:
    corpus = read_corpus(None)
    assert corpus.tokens.size > 5_000_000
    assert b"def " in corpus.tokens[:100_000].tobytes()
    assert corpus.describe().sha256 == read_corpus(None).describe().sha256


def test_a_directory_is_its_text_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("one")
    (tmp_path / "image.bin").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty").touch()
    corpus = read_corpus(str(tmp_path))
    assert corpus.tokens.tobytes() == b"one\ntwo"
    assert corpus.files == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"short", "5 bytes are shorter than one sequence of 8 \\+ 1"),
        (b"\x7fELF\0\0\0" * 100, "is not text"),
    ],
)
def test_bad_data(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Invalid, match=says):
        batches(path)


def test_a_directory_without_text(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no text file in that directory"):
        read_corpus(str(tmp_path))
