"""The UI on a real terminal: what it requires of one, and how it exits without ending the engine."""

import os
import signal
import time
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import EngineStopped, StepsDone
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.terminal.splash import ERASE, SPLASH

from ..conftest import tiny_config
from ..recorded import events_in
from ..terminal import NEW_RUN, WITHOUT_HANG_UP, Terminal, training

ALTERNATE_SCREEN = b"\x1b[?1049h"
"""Switches to the alternate screen, on which the UI is drawn."""


def steps_of(directory: RunDirectory) -> int:
    events = events_in(directory.events)
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)


def assert_trains(directory: RunDirectory) -> None:
    before = steps_of(directory)
    end = time.monotonic() + 20
    while steps_of(directory) <= before + 3:
        assert time.monotonic() < end, "the engine does not train"
        time.sleep(0.2)


@pytest.fixture
def terminal(home: Path) -> Terminal:
    terminal = Terminal(*NEW_RUN)
    terminal.until(training, "training")
    return terminal


@pytest.mark.core
def test_the_engine_keeps_training_however_the_ui_ends(terminal: Terminal) -> None:
    directory = run_directory.find("tiny")
    engine = directory.holder()
    try:
        terminal.process.kill()
        assert_trains(directory)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            viewer = Terminal("attach", "tiny")
            viewer.until(training, "training")
            os.write(viewer.master, b"\xff\xe9")  # typed in another encoding
            time.sleep(0.3)
            viewer.press("0", "loading jax")
            viewer.process.send_signal(number)
            viewer.exit_code()
            assert viewer.is_restored()
            assert_trains(directory)
        for viewer in (Terminal("attach", "tiny"), Terminal("attach", "tiny", start=WITHOUT_HANG_UP)):
            viewer.until(training, "training")
            viewer.hang_up()
            viewer.process.wait(timeout=20)
        assert_trains(directory)
        assert directory.holder() == engine
    finally:
        os.kill(engine.pid, signal.SIGTERM)


@pytest.mark.core
def test_the_ui_works_without_colour(home: Path) -> None:
    terminal = Terminal(*NEW_RUN, NO_COLOR="1")
    terminal.until(training, "training")
    terminal.press("2", "blocks.attention.qkv.kernel")
    terminal.press("x", "Save and end run tiny")
    terminal.press("y", "■ stopped")
    terminal.send("d")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_is_refused(home: Path, term: str) -> None:
    terminal = Terminal(*NEW_RUN, TERM=term)
    assert terminal.exit_code() == 2
    assert terminal.output.startswith(b"shardtui: the UI needs a terminal")
    assert b"TERM is dumb or unset: use `shardtui train --steps N`" in terminal.output
    assert not (home / "state").exists()


@pytest.mark.parametrize("arguments", [["--preset=none"], ["run", "--nonsense"], ["attach"]])
def test_the_splash_is_erased_if_the_ui_does_not_open(home: Path, arguments: list[str]) -> None:
    terminal = Terminal(*arguments)
    assert terminal.exit_code() == 2
    assert terminal.output.startswith(SPLASH.encode())
    assert SPLASH.strip() not in "\n".join(terminal.screen.display)
    assert terminal.screen.display[0].startswith(("shardtui: ", "usage: "))
    assert terminal.screen.cursor.x == 0


def test_commands_without_a_ui_show_no_splash(home: Path) -> None:
    for arguments in (["ls"], ["run", "--help"], ["--version"]):
        terminal = Terminal(*arguments)
        terminal.exit_code()
        assert SPLASH.encode() not in terminal.output


def test_the_splash_is_erased_before_the_ui_is_drawn(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    EventLog(directory.events, lambda event: None).append(EngineStopped(step=0, reason="stopped"))
    terminal = Terminal("attach", directory.name)
    terminal.until(lambda text: "■ stopped" in text and "1 Watch" in text, "the end, and the keys")
    terminal.send("d")
    assert terminal.exit_code() == 0
    before, after = terminal.output.split(ALTERNATE_SCREEN, 1)
    assert before == (SPLASH + ERASE).encode()
    assert SPLASH.strip().encode() not in after
