"""Files that may hold anything: every way in which one cannot be read is a UserError that begins with its path."""

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from shardtui.engine.base.untrusted import decode, read_struct, read_text, refusing
from shardtui.engine.base.user_error import UserError

ROOT = Path(__file__).parents[2]
READS = {"read_text", "read_bytes", "fromfile", "memmap", "loads", "safe_load"}
"""Methods that read a file, or parse the content of one."""
DECODES = {"decode", "decode_lines", "Decoder", "load"}
"""Those of `json`, `msgspec`, `tomllib`, `yaml` and `numpy`."""
PARSERS = {"json", "msgspec.json", "tomllib", "yaml", "np"}
ELSEWHERE = {
    **dict.fromkeys(("engine/base/untrusted.py", "engine/base/regular_file.py"), "the one place"),
    **dict.fromkeys(("engine/base/machine.py", "engine/base/processes.py", "engine/wire/lock.py"), "/proc and /sys"),
    "tui/client/stopping.py": "/proc",
    "engine/planning/compilers.py": "the package's own sources",
    "tui/metrics/csv_file.py": "what it has written, and the first lines of a file that it may replace",
    "engine/program/compilation_cache.py": "sources that this process has imported",
    **dict.fromkeys(
        ("engine/base/output.py", "engine/supervision/engine.py"), "the output and the beat of an own child"
    ),
    "engine/distributed/seal.py": "the run's secret, on storage that may be remote",
    "engine/checkpoint/reading.py": "on storage that may be remote: Unreadable or Damaged",
    "engine/checkpoint/manifest.py": "what that has read: Unreadable or Damaged",
    "engine/checkpoint/export.py": "syncs what it has written",
    "engine/program/weights.py": "maps tensors of files that `stored_tensors` has checked",
    **dict.fromkeys(
        ("engine/spec/preset_files.py", "engine/spec/maxtext_rules.py"), "TOML and YAML, inside `refusing`"
    ),
    "engine/spec/model_choice.py": "a value of --set",
    "engine/wire/event_log.py": "line by line: a damaged one is counted",
    "engine/__main__.py": "arguments from the UI's process",
    "engine/spec/watch_request.py": "the request of the command that became this process",
    **dict.fromkeys(("engine/watching/reporter.py", "tui/cli/watch.py"), "what a watched program has printed"),
    **dict.fromkeys(("tui/client/engine_client.py", "tui/cli/inspect.py"), "engine's answer"),
    **dict.fromkeys(("tui/client/planner.py", "tui/client/explainer.py"), "engine's answer"),
    "engine/program/compiler_process.py": "the answer of an own child",
}


class Point(Struct):
    x: int


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "a directory, not a regular file"),
        (os.mkfifo, "a FIFO, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "a character device, not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b" " * 101), "101 bytes: at most 100 are read"),
        (lambda path: path.write_bytes(b'{"x": "\xff"}'), "Expected `int`|invalid utf-8|can't decode"),
        (lambda path: path.write_bytes(b'{"x": 1'), "Input data was truncated"),
        (lambda path: path.write_bytes(b'{"x": [1]}'), r"Expected `int`, got `array` - at `\$.x`"),
        (lambda path: path.write_bytes(b'{"y": ' + b"[" * 90), "truncated|nested too deeply"),
        (lambda path: path.write_bytes(b'{"x": ' + b"9" * 80 + b"e999}"), "out of range"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_that_begins_with_the_path(
    make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(UserError, match=f"^{path}: cannot be read: .*({says})") as refused:
        read_struct(path, Point, 100)
    assert "\n" not in str(refused.value)


def test_names_that_are_no_paths_are_refused() -> None:
    for name in ("a\0b", "\ud800", "x" * 300, ""):
        with pytest.raises(UserError, match="cannot be read: "):
            read_text(name)


def test_the_cause_tells_storage_from_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, cause in ((None, OSError), (b"{", msgspec.DecodeError), (b"\xff", UnicodeDecodeError)):
        if content:
            path.write_bytes(content)
        with pytest.raises(UserError) as refused:
            read_text(path) if content == b"\xff" else read_struct(path, Point)
        assert isinstance(refused.value.__cause__, cause)


def test_deep_nesting_and_advice() -> None:
    with pytest.raises(UserError, match=r"^here: cannot be read: nested too deeply: write it again$"):
        decode(b"[" * 100_000, object, "here", "write it again")
    with pytest.raises(UserError, match="mine"), refusing("not mine"):
        raise UserError("mine")


def test_files_are_read_in_one_place() -> None:
    """Elsewhere each would need its own list of what can go wrong."""
    modules = (path for room in ("engine", "tui") for path in (ROOT / room).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in modules if any(_reads(path))}
    assert found - ELSEWHERE.keys() == set(), "read files through engine/base/untrusted.py"
    assert ELSEWHERE.keys() - found == set(), "no longer needed"


def _reads(path: Path) -> Iterator[ast.Call]:
    for call in ast.walk(ast.parse(path.read_text())):
        match call:
            case ast.Call(ast.Name("open")):
                yield call
            case ast.Call(ast.Attribute(owner, name)) if name in READS:
                yield call
            case ast.Call(ast.Attribute(owner, name)) if name in DECODES and ast.unparse(owner) in PARSERS:
                yield call
            case ast.Call(ast.Attribute(_, "open"), [ast.Constant(str(mode)), *_]) if mode.startswith("r"):
                yield call


def test_a_link_is_followed_and_a_file_may_have_as_many_bytes_as_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "file", 4) == read_text(tmp_path / "link", 4) == "text"
