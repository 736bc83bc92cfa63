"""The UI on a real terminal: what it needs of one, and what its death does to the engine."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
import pytest
from shardtui.engine import run_directory
from shardtui.engine.event_log import LogReader
from shardtui.engine.protocol import StepsDone
from shardtui.engine.run_directory import RunDirectory

from .conftest import TINY

COMMAND = ["-m", "shardtui.tui.cli", "run", "--run=tiny", *(f"--set={setting}" for setting in TINY)]


class Terminal:
    """A pty with `shardtui` on it, and the screen that its output makes."""

    def __init__(self, **environment: str) -> None:
        env = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = pexpect.spawn(sys.executable, COMMAND, dimensions=(24, 80), env=env, timeout=None)
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)

    def until(self, holds: Callable[[str], object], why: str) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
                self.stream.feed(self.process.read_nonblocking(65536, timeout=0.1))
            if holds("\n".join(self.screen.display)):
                return
        raise AssertionError(f"waited in vain for {why}:\n" + "\n".join(self.screen.display))


def steps_of(directory: RunDirectory) -> int:
    events = [event for events in LogReader(directory.events).read() for event in events]
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)


def assert_goes_on(directory: RunDirectory) -> None:
    before = steps_of(directory)
    end = time.monotonic() + 20
    while steps_of(directory) <= before + 3:
        assert time.monotonic() < end, "the engine stands still"
        time.sleep(0.2)


@pytest.fixture
def terminal(home: Path) -> Terminal:
    terminal = Terminal()
    terminal.until(lambda text: "● training" in text and "step " in text, "training")
    return terminal


def test_the_engine_outlives_every_death_of_the_ui(terminal: Terminal) -> None:
    directory = run_directory.find("tiny")
    engine = directory.holder()
    assert engine
    try:
        terminal.process.kill(signal.SIGKILL)
        assert_goes_on(directory)
        for end in (signal.SIGTERM, signal.SIGHUP, "hang-up"):
            viewer = pexpect.spawn(
                sys.executable, ["-m", "shardtui.tui.cli", "attach", "tiny"], env={**os.environ, "TERM": "xterm"}
            )
            viewer.expect("training", timeout=30)
            if isinstance(end, str):
                viewer.close(force=False)
            else:
                viewer.kill(end)
                viewer.expect(pexpect.EOF, timeout=10)
                assert b"\x1b[?1049l" in viewer.before, "the terminal is not restored"
                viewer.close()
            assert_goes_on(directory)
        assert directory.holder() == engine
    finally:
        os.kill(engine, signal.SIGTERM)


def test_the_ui_outlives_the_engine(terminal: Terminal) -> None:
    engine = run_directory.find("tiny").holder()
    assert engine
    os.kill(engine, signal.SIGKILL)
    terminal.until(lambda text: "✗ crashed" in text, "the crash to show")
    terminal.process.send("3")
    terminal.until(lambda text: "SIGKILL" in text, "the reason")
    terminal.process.send("d")
    terminal.process.expect(pexpect.EOF, timeout=10)
    terminal.process.close()
    assert terminal.process.exitstatus == 1


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_be_drawn_on_is_refused(home: Path, term: str) -> None:
    terminal = Terminal(TERM=term)
    terminal.process.expect("TERM is dumb or unset: use `shardtui train --steps N`", timeout=20)
    terminal.process.expect(pexpect.EOF)
    terminal.process.close()
    assert terminal.process.exitstatus == 2
    assert not (home / "state").exists()
