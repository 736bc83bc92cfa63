"""The UI on a real terminal: what it requires of one, how it exits without ending the engine, and what it redraws."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import EngineStopped, StepsDone
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.terminal import driver as redraws_module
from shardtui.tui.terminal.driver import Driver, Redraws
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.terminal.splash import ERASE, SPLASH
from shardtui.tui.widgets.lines import Lines, set_titles
from textual.app import App, ComposeResult
from textual.content import Content
from textual.events import Key, Paste
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from ..conftest import tiny_config
from ..processes import awaited
from ..recorded import events_in
from ..terminal import NEW_RUN, WITHOUT_HANG_UP, Terminal, training
from .recordings import recorded
from .test_app import finished, until


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


SHORT, LONG = 0.1, 0.8
"""Seconds between frames."""


async def test_steps_wait_until_the_connection_has_carried_the_previous_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redraws_module, "MIN_FRAME_SECONDS", SHORT)
    monkeypatch.setattr(redraws_module, "MAX_FRAME_SECONDS", LONG)
    drawn: list[None] = []
    app = App[None]()
    async with app.run_test():
        redraws = Redraws(app, lambda: drawn.append(None))
        redraws.soon()
        assert len(drawn) == 1, "there is no previous frame"
        redraws.soon()
        redraws.soon()
        assert len(drawn) == 1
        await until(lambda: len(drawn) == 2, "the second frame")
        redraws.soon()
        redraws.now()
        assert len(drawn) == 3
        await asyncio.sleep(2 * SHORT)
        assert len(drawn) == 3, "the scheduled frame was drawn with it"
        redraws.now()
        began = time.monotonic()
        Driver.written += 10_000_000
        redraws.soon()
        await asyncio.sleep(2 * SHORT)
        is_early = time.monotonic() < began + LONG - SHORT
        assert not is_early or len(drawn) == 4, "a slow connection is still busy"
        await until(lambda: len(drawn) == 5, "the next frame")


class Drawn(Lines):
    redrawn: list[tuple[Region, ...]]

    def refresh(self, *regions: Region, **options: Any) -> "Drawn":
        if hasattr(self, "redrawn"):
            self.redrawn.append(regions)
        return super().refresh(*regions, **options)


class OneWidget(App[None]):
    """Two rows of 18 cells inside a border."""

    CSS = "Drawn { height: 4; width: 20; border: round white; }"

    def compose(self) -> ComposeResult:
        yield Drawn()


def show(*lines: str) -> Callable[[Drawn], None]:
    return lambda widget: widget.show([Content(line) for line in lines])


def title(text: str) -> Callable[[Drawn], None]:
    return lambda widget: set_titles(widget, text, "[x]")


FIRST, SECOND = Region(0, 0, 18, 1), Region(0, 1, 18, 1)


@pytest.mark.parametrize(
    ("changes", "redrawn"),
    [
        ([show("a", "b"), show("a", "b"), show("a", "c")], [[(FIRST, SECOND)], [], [(SECOND,)]]),
        ([show("a", "b", "c"), show("a", "b", "d")], [[(FIRST, SECOND)], []]),
        ([title("[a] b"), title("[a] b"), title("c")], [[(), ()], [], [()]]),
    ],
    ids=["changed lines", "lines below the edge", "a title"],
)
async def test_only_what_has_changed_is_redrawn(
    changes: list[Callable[[Drawn], None]], redrawn: list[list[tuple[Region, ...]]]
) -> None:
    app = OneWidget()
    async with app.run_test():
        widget = app.query_one(Drawn)
        for change, regions in zip(changes, redrawn, strict=True):
            widget.redrawn = []
            change(widget)
            assert widget.redrawn == regions


class Sized(Lines):
    rendered: ClassVar[list[str]] = []

    def draw(self) -> None:
        self.show([Content(f"{self.size.width} cells")])

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        self.rendered.append(strip.text.strip())
        return strip


class OneSized(App[None]):
    def compose(self) -> ComposeResult:
        yield Sized()


async def test_lines_are_in_the_first_frame_of_each_size() -> None:
    """Textual tells a widget its size after that frame."""
    app = OneSized()
    async with app.run_test(size=(60, 5)) as pilot:
        await pilot.resize_terminal(50, 5)
        await pilot.pause()
    assert set(Sized.rendered) == {"60 cells", "50 cells"}


async def test_keys_are_drawn_again_only_where_they_change(home: Path) -> None:
    async with finished(recorded()) as (app, pilot):
        await until(lambda: app.screen.query("FooterKey"), "the keys")
        keys = list(app.screen.query("FooterKey"))
        app.redraws.now()
        await pilot.pause()
        await pilot.pause()
        assert list(app.screen.query("FooterKey")) == keys
        app.state.host = "tpu-vm"
        app.redraws.now()
        await until(lambda: "Resume" not in screen_text(app), "the keys of a run on another host")
        assert not set(app.screen.query("FooterKey")) & set(keys)
