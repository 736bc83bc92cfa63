"""The commands on the pages of the site run as they are written, and the site has no broken link.

A page's commands are its ```sh blocks, run in order in one directory. A command that exits with another code than 0
says so: `# exits with 1`. The ```text block below shows what such a block prints, shortened: each of its words and of
its figures of bytes and operations must be printed, but for temporaries and peaks. A ```toml or ```python block that
begins with the name of a file, as `# mine.toml`, is that file.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from shardtui.tui.cli.main import COMMANDS, _parser

from .command import answered
from .terminal import Terminal, training

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
EXIT_CODE = re.compile(r"# exits with (\d+)$", re.MULTILINE)
WORD = re.compile(r"[^\W\d_]{3,}")
COMMAND = re.compile(r"\bshardtui ([^`|#\n']+)")
FIGURE = re.compile(r"\d[\d.,]* (?:[kMGT]?B|GFLOP)\b")
"""Bytes and operations of a program. Times are of the machine on which a page was written."""
OF_THE_COMPILER = re.compile(r"^.*(?:temporaries|a step needs).*$", re.MULTILINE)
"""Lines whose bytes the compiler decides for the processor at hand: temporaries, and a peak, which includes them."""
SIZE = (110, 32)
"""Columns and rows of a terminal on which Watch has all panels that a page names."""
PAGES = [
    *(page.relative_to(DOCS).as_posix() for page in sorted((DOCS / "tutorial").glob("*.md"))),
    *("curves.md", "data.md", "explain.md", "out-of-memory.md", "slow-step.md", "tpu-vm.md"),
]


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found.groups()) for found in BLOCK.finditer((DOCS / page).read_text())]


@pytest.fixture
def shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which `shardtui` and `python` are those of this environment."""
    commands, work = home / "bin", home / "work"
    commands.mkdir()
    work.mkdir()
    for name, arguments in (("shardtui", " -m shardtui.tui"), ("python", "")):
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(work)
    return work


def run(block: Block) -> str:
    """Returns what the commands of a block print. Fails if they exit with another code than the page says."""
    script = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    stated = EXIT_CODE.search(block.text)
    assert done.returncode == (int(stated[1]) if stated else 0), f"{block.text}\n{done.stdout}"
    return done.stdout


def check_shown(block: Block, printed: str) -> None:
    shown = [*WORD.findall(block.text), *FIGURE.findall(OF_THE_COMPILER.sub("", block.text))]
    missing = {*shown} - {*WORD.findall(printed), *FIGURE.findall(printed)}
    assert not missing, f"on the page, and not printed: {missing}\n{block.text}\n{printed}"


def follow(page: str, folder: Path) -> Iterator[Block]:
    """Runs the commands of a page in order, and yields the blocks of any other kind."""
    printed = None
    for block in blocks(page):
        if block.language == "sh":
            printed = run(block)
        elif block.language == "text" and printed is not None:
            check_shown(block, printed)
            printed = None
        elif name := FILE.match(block.text):
            (folder / name[1]).write_text(block.text)
        else:
            printed = None
            yield block


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(page: str, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [block.text for block in blocks(page) if block.language == "sh"]
    assert commands
    if any("--profile" in text for text in commands):
        monkeypatch.delenv("XLA_FLAGS")  # steps that are compiled faster take longer, most of all while they are traced
    assert [block for block in follow(page, shell) if block.language in ("console", "bash", "shell")] == []


def on_terminal(block: Block) -> Terminal:
    """Starts the command of a ```console block. LINES, which pytest-xdist sets, would be taken for the height."""
    prompt, name, *arguments = block.text.split()
    assert (prompt, name) == ("$", "shardtui")
    return Terminal(*arguments, size=SIZE, without=["LINES"])


def move_cursor_to(terminal: Terminal, preset: str) -> None:
    """A key that comes before the list has the focus is lost."""
    for _ in range(200):
        if f"╭─ {preset} ─" in "\n".join(terminal.screen.display):
            return
        terminal.send("\x1b[B")
        for _ in range(10):
            terminal.read()
    raise AssertionError(f"the cursor does not come to {preset}:\n" + "\n".join(terminal.screen.display))


@pytest.mark.core
def test_the_first_ten_minutes(shell: Path) -> None:
    """The ```console blocks after the installation start the UI, each on a terminal of its own."""
    ui = (block for block in follow("first-ten-minutes.md", shell) if "pip install" not in block.text)

    terminal = on_terminal(next(ui))
    terminal.until(lambda text: training(text) and " fsdp " in text, "a step and the presets")
    move_cursor_to(terminal, "fsdp")
    terminal.press("\r", "dp → fsdp at step", "digests equal")
    check_shown(next(ui), "\n".join(terminal.screen.display) + "moved stalled all")
    terminal.press("2", "blocks.mlp.up.bias")
    terminal.send("1d")
    assert terminal.exit_code() == 0

    terminal = on_terminal(next(ui))
    terminal.until(training, "the run")
    terminal.press("x", "(y)")
    terminal.press("y", "■ stopped")
    terminal.send("q")
    assert terminal.exit_code() == 0

    terminal = on_terminal(next(ui))
    terminal.until(lambda text: training(text) and "tp ·" in text, "the run under tp")
    terminal.send("d")
    assert terminal.exit_code() == 0
    assert next(ui, None) is None


def test_the_rarest_options_stand_behind_help_all() -> None:
    pages = (answered("train", *asked).stdout for asked in (["-h"], ["--help", "all"]))
    short, whole = (set(re.findall(r"--[a-z-]+", page)) for page in pages)
    assert len(whole) > len(short) + 10 and whole > short


def test_every_command_in_the_docs_has_known_options() -> None:
    """Of all pages and the README, also where a command needs hosts, a TPU or an hour."""
    parser = _parser(*COMMANDS)
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    known = {name: {*chain(*(action.option_strings for action in commands[name]._actions))} for name in commands}
    seen: set[str] = set()
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for written in COMMAND.findall(page.read_text().replace("\\\n", " ")):
            name = written.split()[0]
            seen.add(name)
            words = written.split()
            if name == "watch":  # the options behind the program are its own
                words = takewhile(lambda word: word != "-m" and not word.endswith(".py"), words)
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            unknown = options - known.get(name, known["run"]) - {"--help", "--version"}
            assert not unknown, f"{page.name}: shardtui {written}"
    assert set(known) <= seen
