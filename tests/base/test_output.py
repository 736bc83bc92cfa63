"""What is printed, by us and by child processes: one place prints, and nothing of it moves a cursor."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from shardtui.engine.base.output import Relay, note_traceback, say, show
from shardtui.tui.terminal.plain_table import plain_console, plain_table

ROOT = Path(__file__).parents[2]
PRINTING = {
    "engine/base/output.py": "all that is printed",
    "engine/wire/engine_command.py": "answers as JSON, to a file that the UI process reads",
    "tui/terminal/splash.py": "the splash",
    "tui/cli/stream.py": "compressed events, to a pipe",
    "tui/cli/watch.py": "replaces the process by a program of the user's, whose output is its own",
    "tui/cli/engine.py": "replaces the process by the engine, which prints through engine/base/output.py",
}
"""The places that may print, and what."""
STARTING = ("Popen", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell")
HOSTILE = "\x1b]52;c;b3duZWQ=\x07\x1b[2J\x9b31m\x90\x9c\u202e\u2066\x00\x08\x7f\u200b\udcff"
"""The clipboard, the screen, C1 controls, bidirectional overrides, NUL and others, and a lone surrogate."""


def printing(path: Path) -> Iterator[str]:
    """Yields what a module does that may write to a terminal."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(ast.Attribute(ast.Name("sys"), "stdout" | "stderr" | "__stdout__" | "__stderr__"), name):
                if name in ("write", "writelines", "buffer"):
                    yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(ast.Name("print" | "Console")) | ast.Call(ast.Attribute(_, "Console")):
                yield f"{node.lineno}: {ast.unparse(node.func)}"
            case ast.Call(ast.Attribute(ast.Name("traceback"), name)) if name.startswith("print"):
                yield f"{node.lineno}: traceback.{name}"
            case ast.Call(ast.Attribute(ast.Name("os"), name)) if name.startswith(("exec", "spawn", "popen", "system")):
                yield f"{node.lineno}: os.{name}"
            case ast.Call(ast.Attribute(_, name) | ast.Name(name)) if (
                name in STARTING or ast.unparse(node.func) == "subprocess.run"
            ):
                streams = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) != "None"}
                if not {"stdout", "stderr"} <= streams and "capture_output" not in streams:
                    yield f"{node.lineno}: {name} lets a child process inherit the terminal"


def test_one_place_prints_and_no_child_process_inherits_the_terminal() -> None:
    modules = (path for room in ("engine", "tui") for path in (ROOT / room).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): places for path in modules if (places := list(printing(path)))}
    assert found.keys() == PRINTING.keys(), {name: found[name] for name in found.keys() - PRINTING.keys()}


def assert_printable(text: str) -> None:
    assert "\\x1b]52;c;b3duZWQ=\\x" in text
    assert all(line.isprintable() for line in text.split("\n")), text


def test_hostile_text_is_printed_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE)
    assert_printable(capsys.readouterr().out)
    say(HOSTILE)
    note_traceback(ValueError(HOSTILE))
    assert_printable(capsys.readouterr().err)
    table = plain_table(HOSTILE)
    table.add_row(HOSTILE)
    plain_console(width=300, color_system=None).print(table, HOSTILE)
    assert_printable(capsys.readouterr().out)


def test_what_a_child_process_prints_is_relayed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import os, sys; os.write(2, b'\\x1b]52;c;b3duZWQ=\\x07\\r\\x9b31m\\xff\\0\\n'); print('\\x1b[2J', flush=True);"
        "sys.stderr.write('x' * 100_000 + '\\n'); sys.stderr.write('the end')"
    )
    with closing(Relay()) as relay:
        command = [sys.executable, "-c", script]
        subprocess.run(command, stdout=relay.descriptor, stderr=relay.descriptor, check=True)
    text = capsys.readouterr().err
    assert_printable(text)
    first, second, *long, last, rest = text.split("\n")
    assert "\\x9b31m\\xff\\x00" in first
    assert (second, last, rest) == ("\\x1b[2J", "the end", "")
    assert "".join(long) == "x" * 100_000
