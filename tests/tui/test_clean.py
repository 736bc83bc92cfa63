"""Text for a terminal has no character that it obeys, hides or leaves blank; JSON loses nothing."""

import json
import os
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.output import printable
from shardtui.engine.spec.config import ScheduledSwitch
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import CommandRefused, EngineStarted
from shardtui.tui.terminal.clean import clean, json_line

from ..command import answered
from ..conftest import tiny_config
from .test_cli import run


@given(st.text())
def test_printable_text_is_printable_and_stays_the_same(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_every_invisible_character_is_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            assert printable(character) != character, f"U+{code:04X}"
    for character in "\u00ad\u034f\u115f\u180e\u2800\u3164\ufe0f\ufffb\U000e0041\U000e0100":
        assert printable(character).startswith("\\")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m\x9b\x07", "\\x1b[31m\\x9b\\x07"),
        ("a\nb\tc\u00a0d", "a b c d"),
        ("\u202e\udcff\U000e0041", "\\u202e\\udcff\\U000e0041"),
        ("漢字 العربية ไทย µ", "漢字 العربية ไทย µ"),
        ("[bold]x[/]", "[bold]x[/]"),
    ],
)
def test_text_is_shown_as_expected(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert clean(CommandRefused(problem=text)).problem == shown
    started = EngineStarted(protocol=1, pid=1, config=tiny_config(switches=(ScheduledSwitch(1, text),)))
    assert clean(started).config.switches == (ScheduledSwitch(1, shown),)  # type: ignore[union-attr]


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_is_ascii_and_loses_nothing(text: str) -> None:
    line = json_line(CommandRefused(problem=text))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["problem"] == text
    assert msgspec.json.decode(line, type=CommandRefused).problem == text


HOSTILE = "\x1b]0;owned\x07\u202e[red]\x9b31m"


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop", HOSTILE],
        ["train", "--steps=1", f"--model={HOSTILE}"],
        ["train", f"--steps={HOSTILE}"],
        ["inspect", f"--hlo=/{HOSTILE}", "--mesh=data=8"],
        ["presets", "--preset=\udcff.toml"],
        ["presets", "--preset=/" + "x" * 300],
        ["presets", "--preset=~nobody-of-that-name/x.toml"],
        ["presets", "import", "~nobody-of-that-name/x.yml"],
        ["train", "--steps=1", "--model=~nobody-of-that-name/x.py:f"],
        ["train", "--steps=1", "--model=hf:~nobody-of-that-name/x"],
        ["train", "--steps=1", "--model=/" + "x" * 300 + "/x.py:f"],
        ["train", "--steps=1", "--to=csv:~nobody-of-that-name/x"],
        ["train", "--steps=1", "~nobody-of-that-name/run.toml"],
        ["explain", "~nobody-of-that-name/x.py:F"],
        ["plan", "--topology=v5e:2x2", "--search", "--save=~nobody-of-that-name/x.toml"],
        ["data", "prepare", "pyproject.toml", "nowhere", "--tokenizer=~nobody-of-that-name/x"],
        ["export", "tiny-1", "~nobody-of-that-name/x"],
        ["presets", "--set=layers=" + "[" * 5000],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1][:10]!a}",
)
def test_a_hostile_command_line_is_shown_as_text(home: Path, arguments: list[str]) -> None:
    result = answered(*arguments)
    assert result.returncode == 2
    assert result.stderr
    assert all(line.isprintable() for line in result.stderr.splitlines())


def test_runs_are_listed_as_text(home: Path) -> None:
    run_directory.create(tiny_config(run="hostile", preset=HOSTILE, model_name="[/]"))
    (run_directory.state_home() / HOSTILE).mkdir()
    (run_directory.state_home() / HOSTILE / "run.json").write_text("{}")
    table = run("ls", COLUMNS="200")
    assert all(line.isprintable() for line in (table.stdout + table.stderr).splitlines())
    assert "\\x1b]0;owned\\x07\\u202e[red]\\x9b31m" in table.stdout and "[/]" in table.stdout
    answer = run("ls", "--json")
    assert answer.stdout.isascii()
    assert [listed["preset"] for listed in json.loads(answer.stdout)["runs"]] == [HOSTILE]


def test_a_locale_that_cannot_encode_gets_escapes(home: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = run("inspect", "--hlo=x", "--mesh=nope", **ascii_only)
    assert (result.returncode, "AXIS=SIZE,\\u2026" in result.stderr) == (2, True)
    assert run("ls", "--help", **ascii_only).returncode == 0


def test_names_in_a_data_set_are_shown_as_text(home: Path) -> None:
    """The engine, a child process, refuses the file and quotes its fields."""
    source = home / "source.jsonl"
    source.write_text(json.dumps({HOSTILE: "text", "\x00\x1b]52;c;eA==\x07": 1}) + "\n")
    result = answered("train", "--steps=1", f"--data={source}")
    assert result.returncode == 2
    assert "\\x1b]0;owned\\x07\\u202e[red]\\x9b31m" in result.stderr
    assert "\\x1b]52;c;eA==\\x07" in result.stderr
    assert all(line.isprintable() for line in result.stderr.split("\n"))


def test_paths_that_are_not_utf_8_are_used_or_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"d\xffr")
    texts = home / "texts"
    texts.mkdir()
    (texts / f"{name}.txt").write_text("What is split comes together. " * 40)
    assert answered("data", "prepare", str(texts), str(home / "out")).returncode == 0
    folder = home / name
    folder.mkdir()
    (folder / "text.jsonl").write_text('{"text": "What is split comes together."}\n')
    (folder / "lm.py").write_text("")
    presets = home / "config" / "shardtui" / "presets" / "parallelism"
    presets.mkdir(parents=True)
    (presets / f"{name}.toml").write_text("[mesh]\ndata = -1\n")
    monkeypatch.chdir(folder)
    commands = [
        ["data", "prepare", "text.jsonl", "out"],
        ["train", "--steps=1", "--data=text.jsonl"],
        ["train", "--steps=1", "--model=lm.py:lm"],
        ["train", "--steps=1", "--checkpoint-dir=kept"],
        ["inspect", "--model=lm.py:lm"],
        ["explain", "lm.py:lm", "--text"],
    ]
    answers = [answered(*command) for command in commands]
    assert all("rename the file or directory" in each.stderr for each in answers)
    assert not run_directory.all_runs(), "nothing is half made"
    assert answered("presets", "--devices=8").returncode == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    answers += [answered(*command) for command in (["ls"], ["stop", "none"], ["train", "--steps=1"])]
    for each in answers:
        assert (each.returncode, f"{home}/d\\udcffr" in each.stderr) == (2, True), (each.args, each.stderr)
