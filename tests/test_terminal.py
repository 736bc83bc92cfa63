"""The UI on a real terminal: what it needs of one, and what its death does to the engine."""

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from shardtui.engine import run_directory
from shardtui.engine.event_log import LogReader
from shardtui.engine.protocol import StepsDone
from shardtui.engine.run_directory import RunDirectory

from .conftest import TINY

ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes stdin the controlling terminal first, so that its hang-up is told by SIGHUP."""

NEW_RUN = ("run", "--run=tiny", *(f"--set={setting}" for setting in TINY))


class Terminal:
    """A pty of 80 × 24 with `shardtui` on it, and the screen that its output makes."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.master, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (24, 80))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_TERMINAL, sys.executable, "-m", "shardtui.tui.cli", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(terminal)
        self.output = b""
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)

    def read(self) -> bool:
        """Takes what has been written. False once the other end is closed."""
        if not select.select([self.master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.output += data
        self.stream.feed(data)
        return True

    def until(self, holds: Callable[[str], object], why: str) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.read()
            if holds("\n".join(self.screen.display)):
                return
        raise AssertionError(f"waited in vain for {why}:\n" + "\n".join(self.screen.display))

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def exit_code(self) -> int:
        """Reads to the end and waits for the process."""
        end = time.monotonic() + 20
        while self.read():
            assert time.monotonic() < end, "it does not end"
        return self.process.wait(timeout=20)

    def hang_up(self) -> None:
        os.close(self.master)


def steps_of(directory: RunDirectory) -> int:
    events = [event for events in LogReader(directory.events).read() for event in events]
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)


def assert_goes_on(directory: RunDirectory) -> None:
    before = steps_of(directory)
    end = time.monotonic() + 20
    while steps_of(directory) <= before + 3:
        assert time.monotonic() < end, "the engine stands still"
        time.sleep(0.2)


def training(text: str) -> bool:
    return "● training" in text and "step " in text


@pytest.fixture
def terminal(home: Path) -> Terminal:
    terminal = Terminal(*NEW_RUN)
    terminal.until(training, "training")
    return terminal


def test_the_engine_outlives_every_death_of_the_ui(terminal: Terminal) -> None:
    directory = run_directory.find("tiny")
    engine = directory.holder()
    assert engine
    try:
        terminal.process.kill()
        assert_goes_on(directory)
        for number in (signal.SIGTERM, signal.SIGHUP):
            viewer = Terminal("attach", "tiny")
            viewer.until(training, "training")
            viewer.process.send_signal(number)
            viewer.exit_code()
            assert b"\x1b[?1049l" in viewer.output, "the terminal is not restored"
            assert_goes_on(directory)
        viewer = Terminal("attach", "tiny")
        viewer.until(training, "training")
        viewer.hang_up()
        viewer.process.wait(timeout=20)
        assert_goes_on(directory)
        assert directory.holder() == engine
    finally:
        os.kill(engine, signal.SIGTERM)


def test_the_ui_outlives_the_engine(terminal: Terminal) -> None:
    engine = run_directory.find("tiny").holder()
    assert engine
    os.kill(engine, signal.SIGKILL)
    terminal.until(lambda text: "✗ crashed" in text, "the crash to show")
    terminal.send("0")
    terminal.until(lambda text: "SIGKILL" in text, "the reason")
    terminal.send("d")
    assert terminal.exit_code() == 1


def test_without_colour(home: Path) -> None:
    terminal = Terminal(*NEW_RUN, NO_COLOR="1")
    terminal.until(training, "training")
    terminal.send("2")
    terminal.until(lambda text: "blocks.attention.qkv.kernel" in text, "the arrays")
    terminal.send("x")
    terminal.until(lambda text: "End run tiny" in text, "the question")
    terminal.send("y")
    terminal.until(lambda text: "■ stopped" in text, "the end")
    terminal.send("d")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_be_drawn_on_is_refused(home: Path, term: str) -> None:
    terminal = Terminal(*NEW_RUN, TERM=term)
    assert terminal.exit_code() == 2
    assert b"TERM is dumb or unset: use `shardtui train --steps N`" in terminal.output
    assert not (home / "state").exists()
