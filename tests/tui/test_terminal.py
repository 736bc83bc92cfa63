"""The UI on a real terminal: what it requires of one, and how it exits without ending the engine."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import EngineStopped, StepsDone
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.terminal.driver import Driver
from shardtui.tui.terminal.splash import ERASE, SPLASH
from textual.events import Key, Paste
from textual.message import Message

from ..conftest import tiny_config
from ..processes import awaited
from ..recorded import events_in
from ..terminal import NEW_RUN, WITHOUT_HANG_UP, Terminal, training


def assert_trains(directory: RunDirectory) -> None:
    def step() -> int:
        return max((each.step for each in events_in(directory.events) if isinstance(each, StepsDone)), default=0)

    before = step()
    awaited(lambda: step() > before + 3, "a step")


@pytest.mark.core
def test_the_engine_keeps_training_however_the_ui_ends(home: Path) -> None:
    terminal = Terminal(*NEW_RUN)
    terminal.until(training, "training")
    directory = run_directory.find("tiny")
    engine = directory.holder()
    try:
        terminal.process.kill()
        assert_trains(directory)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            viewer = Terminal("attach", "tiny")
            viewer.until(training, "training")
            os.write(viewer.master, b"\xff\xe9\x1b[1114112u\x1b[48;0;0;0;0t\x1b[48;99999;99999;1;1t")
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
    terminal.press("2", "token.embedding")
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


@pytest.mark.parametrize("arguments", ["--preset=none", "run --nonsense", "attach"])
def test_the_splash_is_erased_if_the_ui_does_not_open(home: Path, arguments: str) -> None:
    terminal = Terminal(*arguments.split())
    assert terminal.exit_code() == 2
    assert terminal.output.startswith(SPLASH.encode())
    assert SPLASH.strip() not in "\n".join(terminal.screen.display)
    assert terminal.screen.display[0].startswith(("shardtui: ", "usage: "))
    assert terminal.screen.cursor.x == 0


@pytest.mark.parametrize("arguments", ["ls", "run --help", "--version"])
def test_commands_without_a_ui_show_no_splash(home: Path, arguments: str) -> None:
    terminal = Terminal(*arguments.split())
    terminal.exit_code()
    assert SPLASH.encode() not in terminal.output


def test_the_splash_is_erased_before_the_ui_is_drawn(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    EventLog(directory.events, lambda event: None).append(EngineStopped(step=0, reason="stopped"))
    terminal = Terminal("attach", directory.name)
    terminal.until(lambda text: "■ stopped" in text and "1 Watch" in text, "the end, and the keys")
    terminal.send("d")
    assert terminal.exit_code() == 0
    before, after = terminal.output.split(b"\x1b[?1049h", 1)  # the alternate screen, on which the UI is drawn
    assert before == (SPLASH + ERASE).encode()
    assert SPLASH.strip().encode() not in after


class TypedOn(Driver):
    """The driver's thread that reads what is typed, on a pipe in place of a terminal and without an app."""

    def __init__(self, descriptor: int) -> None:
        self.fileno, self.exit_event, self._debug = descriptor, threading.Event(), False
        self.keys: list[str | None] = []

    def process_message(self, message: Message) -> None:
        if isinstance(message, Key):
            self.keys.append(message.character)
        if isinstance(message, Paste) and message.text == "the end":
            self.exit_event.set()


def test_no_sequence_ends_the_thread_that_reads_keys() -> None:
    chance = random.Random(7)
    sequences = [b"\x1b[1114112u", b"\x1b[55296u", b"\x1b[48;0;0;0;0t\x1b[<0;3;4M", b"\xff\xe9"]
    for _ in range(5000):
        body = chance.choices(b"0123456789;;:?<$ut~MmRyIO[Pc\x1b\x00\x9b\xff", k=chance.randrange(1, 30))
        sequences.append(b"\x1b" + bytes((chance.choice(b"[[[O]P?"), *body)))
    read, write = os.pipe()
    driver = TypedOn(read)
    thread = threading.Thread(target=driver.run_input_thread, daemon=True)
    thread.start()
    for sequence in sequences:
        os.write(write, sequence + b"\x1b[201~\x1b[20\x1b[Iq")
    os.write(write, b"\x1b[200~the end\x1b[201~")
    assert driver.exit_event.wait(60)
    thread.join(60)
    assert driver.keys.count("q") >= len(sequences)
    assert all(character is None or character.encode() for character in driver.keys)
    os.close(read)
    os.close(write)
