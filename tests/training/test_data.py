"""Batches are a function of (corpus, seed, n); what cannot be text is refused."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.training import data
from shardtui.engine.training.data import SNIFFED, WORTH_A_WORD, Batches, read_corpus


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


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2)  # bytes; what importing takes is a fourth of it
from shardtui.engine.training import data
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.training.data import read_corpus
try:
    print(read_corpus(sys.argv[1]).files)
except Invalid as error:
    print(error)
"""


def read_in_a_process(path: Path) -> str:
    """What `read_corpus` says, in little memory and time."""
    command = [sys.executable, "-c", LIMITED, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def special_files(folder: Path) -> dict[Path, str]:
    """A FIFO, a socket and ways to devices without an end, and what each is."""
    os.mkfifo(folder / "fifo")
    here = Path.cwd()
    os.chdir(folder)  # paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")
    finally:
        os.chdir(here)
    (folder / "zero").symlink_to("/dev/zero")
    return {folder / "fifo": "a FIFO", folder / "socket": "a socket", folder / "zero": "a character device"}


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    for path, kind in special_files(tmp_path).items():
        says = f"--data {path}: {kind}, not a file: give a text file or a directory of them"
        assert read_in_a_process(path).strip() == says


def test_what_is_no_file_is_left_out_of_a_directory(tmp_path: Path) -> None:
    special_files(tmp_path)
    (tmp_path / "text").write_text("text")
    assert read_in_a_process(tmp_path).strip() == "1"


def sparse(path: Path, size: int, first: bytes = b"") -> Path:
    """A file that reads as `first` and zeros, and takes no room."""
    path.write_bytes(first)
    os.truncate(path, size)
    return path


def test_of_a_large_binary_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = sparse(tmp_path / "sparse", 1 << 36)
    assert "the file is not text" in read_in_a_process(path)
    (tmp_path / "text").write_text("text")
    assert read_in_a_process(tmp_path).strip() == "1"


def test_text_that_memory_cannot_hold_is_refused_before_it_is_read(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for number in range(3):
        sparse(tmp_path / f"{number}", machine // 5, b"a" * SNIFFED)
    says = r"[\d.]+ [GT]B of text or more, and this machine has [\d.]+ [GT]B of memory, of which the text may take half"
    assert re.search(says, read_in_a_process(tmp_path))


def test_a_large_text_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sparse(tmp_path / "large", WORTH_A_WORD + 1, b"a" * SNIFFED)
    corpus = read_corpus(str(path))
    assert corpus.tokens.size == WORTH_A_WORD + 1
    assert corpus.tokens[: SNIFFED + 1].tobytes() == b"a" * SNIFFED + b"\0"
    assert capsys.readouterr().err == f"reading 100 MB of text from {path}\n"
    path.write_text("small")
    read_corpus(str(path))
    assert capsys.readouterr().err == ""


def test_a_file_that_changes_its_size_while_it_is_read(tmp_path: Path) -> None:
    """What follows the first block is read once the size of all is known."""
    path = tmp_path / "a"
    path.write_bytes(bytes([1]) * SNIFFED + b"the rest")
    begun = data._begun(path)
    path.write_bytes(bytes([1]) * SNIFFED + b"the rest, longer")
    assert data._joined("text", [begun, begun]).tokens.tobytes().count(b"the rest\n") == 1
    path.write_bytes(bytes([1]) * SNIFFED + b"th")
    assert data._joined("text", [begun]).tokens.tobytes().endswith(bytes([1]) + b"th")
    path.unlink()
    with pytest.raises(Invalid, match=re.escape(f"--data {path}: cannot be read: No such file")):
        data._joined("text", [begun])
