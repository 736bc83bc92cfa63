"""Every reader, on changed files: the short form of `tests/faults/run.py readers`."""

from ..faults import readers


def test_changed_files_are_read_or_refused() -> None:
    rows = list(readers.run(1))
    assert len(rows) == 25
    assert [row for row in rows if not row.is_good] == []
