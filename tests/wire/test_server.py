"""The engine's socket with too many, silent, interrupted or flooding viewers."""

import asyncio
import json
import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from shardtui.engine.base.processes import Deadline
from shardtui.engine.wire import framing
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, PreviewPreset, Stop
from shardtui.engine.wire.descriptions import Preview
from shardtui.engine.wire.events import CommandRefused, Paused, PresetPreviewed, Welcome
from shardtui.engine.wire.framing import frame
from shardtui.engine.wire.run_directory import find
from shardtui.engine.wire.server import MAX_VIEWERS, Answer, Server
from shardtui.tui.cli.train import stop
from shardtui.tui.client import stopping
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import LEAST
from ..tui.test_cli import run, started

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Run:
    def __init__(self) -> None:
        self.process = started("train", "--json", "--run=mine", "--steps=10000000", *LEAST)
        self._lines = iter(self.process.stdout)
        self.until("StepDone")
        self.socket = str(find("mine").socket)
        self.engine = find("mine").holder().pid

    def until(self, kind: str) -> None:
        next(line for line in self._lines if json.loads(line)["type"] == kind)

    def ends(self) -> int:
        for _ in self._lines:
            pass
        return self.process.wait(timeout=30)


@pytest.fixture
def training(home: Path) -> Run:
    return Run()


def connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def test_a_run_with_the_maximum_of_viewers_can_be_stopped(training: Run) -> None:
    with ExitStack() as idle:
        for _ in range(3 * MAX_VIEWERS):
            idle.enter_context(connected(training.socket))
        stopped = run("stop", "mine")
    assert stopped.returncode == 0, stopped
    assert stopped.stdout.startswith("run mine: engine stopped (stopped) at step "), stopped
    assert training.ends() == 0


@pytest.mark.core
def test_a_run_can_be_stopped_during_a_flood_of_connections(training: Run) -> None:
    is_over = threading.Event()
    made, most = 0, 0

    def flood() -> None:
        nonlocal made
        kept: list[socket.socket] = []
        while not is_over.is_set():
            with suppress(OSError):
                kept.append(connected(training.socket))
                kept[-1].send(struct.pack(">I", 1000) + b"half a frame")
                made += 1
            if len(kept) > 200:
                kept.pop(0).close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        while made < 1000:
            training.until("StepDone")
            most = max(most, len([*Path(f"/proc/{training.engine}/fd").iterdir()]))
        stopped = run("stop", "mine")
    finally:
        is_over.set()
        thread.join()
    assert most < 500
    assert (stopped.returncode, training.ends()) == (0, 0), stopped


def test_a_run_that_is_suspended_is_continued_by_stop_and_saved(training: Run) -> None:
    """Its engine could not handle the command."""
    os.kill(training.engine, signal.SIGSTOP)
    stopped = run("stop", "mine")
    assert (stopped.returncode, training.ends()) == (0, 0), stopped


async def test_stop_fails_if_the_run_is_killed_meanwhile(training: Run, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(training.engine, signal.SIGSTOP)
    stopped = asyncio.create_task(stop(EngineClient(find("mine"))))
    await asyncio.sleep(0)
    os.kill(training.engine, signal.SIGKILL)
    assert await stopped == 1
    assert "its process ended without a message" in capsys.readouterr().out


def test_a_run_whose_socket_is_gone_is_stopped_by_a_signal(training: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "CONNECT_SECONDS", 0.1)
    Path(training.socket).unlink()
    assert asyncio.run(stopping.stop(find("mine"), Stop(), Deadline(240), lambda: False)) == ""
    assert training.ends() == 0


@pytest.fixture
def path(home: Path) -> Path:
    return Path(f"/tmp/shardtui-test-server-{home.name[-8:]}.sock")


Inbox = queue.SimpleQueue[AnyCommand]


@contextmanager
def serving(path: Path, answer: Answer | None = None) -> Iterator[tuple[Server, Inbox]]:
    inbox = Inbox()
    server = Server(path, inbox.put)
    if answer:
        server.answer_with(answer)
    server.start()
    try:
        yield server, inbox
    finally:
        server.close()


async def test_a_connection_replaces_the_oldest_silent_one_and_a_viewer_the_oldest_viewer(path: Path) -> None:
    async def greeted() -> Pair:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(frame(Hello()))
        assert await asyncio.wait_for(framing.read_event(reader), 5) == Welcome()
        return reader, writer

    with serving(path) as (server, inbox):
        viewers = [await greeted() for _ in range(MAX_VIEWERS)]
        silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_VIEWERS + 1)]
        assert await asyncio.wait_for(silent[0][0].read(), 2) == b""
        silent[1][1].write(frame(Stop()))
        assert await asyncio.to_thread(inbox.get, timeout=2) == Stop()
        server.publish(Paused(step=7, seq=1))
        for reader, _ in viewers:
            assert await framing.read_event(reader) == Paused(step=7, seq=1)
        newest = await greeted()
        assert await asyncio.wait_for(viewers[0][0].read(), 2) == b""
        server.publish(Paused(step=8, seq=2))
        for reader, _ in (*viewers[1:], newest):
            assert await framing.read_event(reader) == Paused(step=8, seq=2)


async def test_questions_of_all_viewers_are_answered_one_at_a_time(path: Path) -> None:
    """Of the questions that arrive meanwhile only the last is answered; commands do not wait for answers."""
    answering, most, answered = 0, 0, list[int]()

    def answer(question: PreviewPreset) -> Iterator[PresetPreviewed]:
        nonlocal answering, most
        answering += 1
        most = max(most, answering)
        answered.append(question.number)
        time.sleep(0.05)
        answering -= 1
        yield PresetPreviewed(number=question.number, before=Preview(problems=[]), after=Preview(problems=[]))

    with serving(path, answer) as (_, inbox):
        pairs = [await asyncio.open_unix_connection(path) for _ in range(8)]
        for _, writer in pairs:
            asked = (PreviewPreset(number, "p", "", "") for number in range(500))
            writer.write(b"".join(map(frame, [Hello(), *asked, Stop()])))
        began = time.monotonic()
        for _ in pairs:
            assert await asyncio.to_thread(inbox.get, timeout=5) == Stop()
        assert time.monotonic() - began < 2
        for reader, _ in pairs:
            number = -1
            while number != 499:
                event = await asyncio.wait_for(framing.read_event(reader), 10)
                if isinstance(event, Welcome):
                    continue
                number = event.number
    assert most == 1
    assert 8 <= len(answered) < 100


def test_a_server_does_not_remove_the_socket_of_another_one(path: Path) -> None:
    """A new engine has replaced one whose directory was removed."""
    servers = [Server(path, lambda _: None) for _ in range(2)]
    for server in servers:
        server.start()
    servers[0].close()
    connected(str(path)).close()
    servers[1].close()
    assert not path.exists()


async def test_a_bad_frame_ends_its_connection_alone(path: Path) -> None:
    with serving(path) as (_, inbox):
        good, bad = [await asyncio.open_unix_connection(path) for _ in range(2)]
        bad[1].write(struct.pack(">I", 5) + b"hello")
        refused = await framing.read_event(bad[0])
        assert isinstance(refused, CommandRefused) and refused.seq == 0
        assert await bad[0].read() == b""
        good[1].write(frame(Hello()) + frame(Pause()))
        assert await asyncio.to_thread(inbox.get, timeout=5) == Pause()
    assert not path.exists()
