"""A file that several write and others read is always one of those that were written."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shardtui.engine.base.atomic_write import write_atomically

SIZE = 2**16


def test_readers_see_one_of_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"0" * SIZE)

    def write_often(content: bytes) -> None:
        for _ in range(50):
            write_atomically(path, content)

    with ThreadPoolExecutor() as threads:
        writing = [threads.submit(write_often, digit * SIZE) for digit in (b"1", b"2", b"3")]
        while not all(each.done() for each in writing):
            found = path.read_bytes()
            assert (len(found), len(set(found))) == (SIZE, 1)
    for each in writing:
        each.result()
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_what_fails_leaves_what_was_there_and_nobody_else_reads_what_is_private(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "taken", b"text")
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"text")
    assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
    write_atomically(tmp_path / "secret", b"text", 0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
