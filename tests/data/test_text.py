"""Batches are a pure function of (corpus, seed, n); data that is not text is refused."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import LARGE_CORPUS_BYTES, SNIFFED_BYTES, read_corpus


def batches(path: Path, seed: int = 0, batch_size: int = 4, seq_len: int = 8) -> Batches:
    return Batches(read_corpus(str(path)), batch_size, seq_len, seed)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(1, 251)) * 4)
    return path


def test_batches_are_a_pure_function_of_the_next_bytes_and_an_epoch_has_every_window_once(text: Path) -> None:
    in_order, again = batches(text), batches(text)
    expected = [in_order[n] for n in range(70)]
    for n in (69, 3, 3, 40):
        np.testing.assert_array_equal(again[n][0], expected[n][0])
    assert any((batches(text, seed=1)[n][0] != expected[n][0]).any() for n in range(3))
    corpus = text.read_bytes()
    inputs, targets = batches(text)[0]
    assert inputs.shape == targets.shape == (4, 8)
    assert inputs.dtype == np.int32
    for row, shifted in zip(inputs, targets, strict=True):
        assert bytes([*row, shifted[-1]]) in corpus
        np.testing.assert_array_equal(row[1:], shifted[:-1])
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


def test_the_text_files_of_a_directory_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
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
        (b"short", "5 bytes are fewer than one sequence of 8 \\+ 1"),
        (b"\x7fELF\0\0\0" * 100, "is not text"),
    ],
)
def test_unusable_data_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=says):
        batches(path)
    path.unlink(missing_ok=True)
    with pytest.raises(UserError, match="no text file in that directory"):
        batches(tmp_path)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2)  # bytes; imports take a quarter of it
from shardtui.engine.base.user_error import UserError
from shardtui.engine.data.source import read_corpus
for path in sys.argv[1:]:
    try:
        print(read_corpus(path).files)
    except UserError as error:
        print(error)
"""


def read_in_a_process(*paths: Path) -> list[str]:
    """Returns what `read_corpus` says of each path in a process with limited memory and time."""
    command = [sys.executable, "-c", LIMITED, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout.splitlines()


def sparse(path: Path, size: int, first: bytes = b"") -> Path:
    """Makes a sparse file that reads as `first` followed by zeros."""
    path.write_bytes(first)
    os.truncate(path, size)
    return path


def test_what_is_no_text_is_refused_at_once_and_skipped_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large file only the start is read."""
    kinds = {"fifo": "a FIFO", "socket": "a socket", "zero": "a character device"}
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "text").write_text("text")
    large = sparse(tmp_path / "sparse", 1 << 36)
    said = read_in_a_process(*(tmp_path / name for name in kinds), tmp_path, large)
    assert said[:3] == [
        f"--data {tmp_path / name}: {kind}, not a file: give a text file or a directory of text files"
        for name, kind in kinds.items()
    ]
    assert said[3] == "1"
    assert "the file is not text" in said[4]


def test_text_larger_than_memory_stays_in_its_files(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for number in range(3):
        sparse(tmp_path / f"{number}", machine // 2, b"a" * SNIFFED_BYTES)
    assert read_in_a_process(tmp_path) == ["3"]


def test_a_large_text_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sparse(tmp_path / "large", LARGE_CORPUS_BYTES + 1, b"a" * SNIFFED_BYTES)
    corpus = read_corpus(str(path))
    assert corpus.size == LARGE_CORPUS_BYTES + 1
    assert corpus.read(0, SNIFFED_BYTES + 1).tobytes() == b"a" * SNIFFED_BYTES + b"\0"
    assert capsys.readouterr().err == f"reading 100 MB of text from {path}\n"
    path.write_text("small")
    read_corpus(str(path))
    assert capsys.readouterr().err == ""
