"""The engine's socket with too many, silent or flooding viewers, and with those of other versions.

The message names the side to update, and the history still opens.
"""

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
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import run_directory
from shardtui.engine.wire import server as server_module
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, PreviewPreset, Stop
from shardtui.engine.wire.descriptions import Preview
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import AnyEvent, CommandRefused, Event, Paused, PresetPreviewed, Welcome
from shardtui.engine.wire.framing import VERSION, frame, read_command, read_event
from shardtui.engine.wire.run_directory import RunDirectory, find
from shardtui.engine.wire.server import MAX_VIEWERS, Answer, Server
from shardtui.tui.cli.train import stop
from shardtui.tui.client import stopping
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.run_state import Phase

from ..conftest import PACED, tiny_config
from ..recorded import record, started
from ..tui.test_app import shown, status, until
from ..tui.test_cli import run
from ..tui.test_cli import started as started_process

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Run:
    def __init__(self) -> None:
        self.process = started_process("train", "--json", "--run=mine", "--steps=10000000", *PACED)
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


@pytest.mark.core
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
        assert await asyncio.wait_for(read_event(reader), 5) == Welcome()
        return reader, writer

    with serving(path) as (server, inbox):
        viewers = [await greeted() for _ in range(MAX_VIEWERS)]
        silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_VIEWERS + 1)]
        assert await asyncio.wait_for(silent[0][0].read(), 2) == b""
        silent[1][1].write(frame(Stop()))
        assert await asyncio.to_thread(inbox.get, timeout=2) == Stop()
        server.publish(Paused(step=7, seq=1))
        for reader, _ in viewers:
            assert await read_event(reader) == Paused(step=7, seq=1)
        newest = await greeted()
        assert await asyncio.wait_for(viewers[0][0].read(), 2) == b""
        server.publish(Paused(step=8, seq=2))
        for reader, _ in (*viewers[1:], newest):
            assert await read_event(reader) == Paused(step=8, seq=2)


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
                event = await asyncio.wait_for(read_event(reader), 10)
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
    with serving(path) as (server, inbox):
        good, bad = [await asyncio.open_unix_connection(path) for _ in range(2)]
        good[1].write(frame(Hello()))
        assert await asyncio.wait_for(read_event(good[0]), 5) == Welcome()
        bad[1].write(struct.pack(">I", 5) + b"hello")
        refused = await read_event(bad[0])
        assert isinstance(refused, CommandRefused) and refused.seq == 0
        assert await bad[0].read() == b""
        good[1].write(frame(Pause()))
        assert await asyncio.to_thread(inbox.get, timeout=5) == Pause()
        server.publish(Paused(step=7, seq=1))
        assert await asyncio.wait_for(read_event(good[0]), 5) == Paused(step=7, seq=1)
    assert not path.exists()


SECONDS = 10
STOPPED = wire.EngineStopped(step=3, reason="stopped")


class FromTheFuture(Event, frozen=True):
    colour: str = "teal"


@contextmanager
def engine(directory: RunDirectory, *history: Event) -> Iterator[tuple[EventLog, Inbox]]:
    """Holds the lock and serves history and socket, as an engine does. Yields the log and the commands."""
    commands = Inbox()
    server = Server(directory.socket, commands.put)
    log = EventLog(directory.events, server.publish)
    with directory.hold():
        for event in history:
            log.append(event)
        server.start()
        try:
            yield log, commands
        finally:
            server.close()
            log.close()


@pytest.fixture
def directory(home: object) -> RunDirectory:
    return run_directory.create(tiny_config())


async def answers(directory: RunDirectory, *commands: AnyCommand) -> list[AnyEvent]:
    """Returns all events that a viewer receives until the engine closes the connection."""
    reader, writer = await asyncio.open_unix_connection(directory.socket)
    writer.write(b"".join(map(frame, commands)))
    found: list[AnyEvent] = []
    with suppress(asyncio.IncompleteReadError):
        while not found or not reader.at_eof():
            found.append(await asyncio.wait_for(read_event(reader), SECONDS))
    writer.close()
    return found


@pytest.mark.parametrize(
    ("version", "says"), [(VERSION - 1, "update shardtui here"), (VERSION + 1, "restart the run with this version")]
)
async def test_a_viewer_of_another_version_learns_which_side_to_update(
    directory: RunDirectory, version: int, says: str
) -> None:
    with engine(directory) as (_, commands):
        (refused,) = await answers(directory, Hello(version))
        assert commands.empty()
    assert isinstance(refused, CommandRefused)
    assert (refused.protocol, says in refused.problem) == (VERSION, True)


async def test_a_viewer_that_does_not_begin_with_hello_is_refused_but_may_stop_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.2)
    with engine(directory) as (_, commands):
        (refused,) = await answers(directory, Pause())
        assert isinstance(refused, CommandRefused)
        assert "is `Hello`" in refused.problem
        assert await answers(directory) == []
        assert commands.empty()
        await answers(directory, Stop(), Hello(VERSION + 1))
        assert commands.get(timeout=SECONDS) == Stop()


async def followed(directory: RunDirectory, log: EventLog | None = None, *more: Event) -> list[AnyEvent]:
    """Returns all events that a viewer receives; `more` are published once it is connected."""
    found: list[AnyEvent] = []
    async for events in EngineClient(directory).events():
        found += events
        if not events and log:
            await asyncio.sleep(0.2)
            for event in more:
                log.append(event)
            more = ()
    return found


async def test_an_unknown_event_is_skipped(directory: RunDirectory) -> None:
    with engine(directory, started()) as (log, _):
        received = await followed(directory, log, FromTheFuture(), Paused(step=3), STOPPED)
    assert [type(event) for event in received] == [wire.EngineStarted, Paused, wire.EngineStopped]


@pytest.mark.parametrize(
    ("version", "says"), [(VERSION - 1, "restart the run with this version"), (VERSION + 1, "update shardtui")]
)
async def test_the_history_of_a_living_engine_of_another_version_is_shown(
    directory: RunDirectory, version: int, says: str
) -> None:
    with engine(directory, started(protocol=version), FromTheFuture(), wire.TrainingStarted(preset="dp")):
        received = await followed(directory)
    assert [type(event) for event in received] == [wire.EngineStarted, wire.TrainingStarted, wire.Disconnected]
    assert says in received[-1].reason
    assert f"protocol {VERSION}, the engine of the run protocol {version}" in received[-1].reason


async def test_the_refusal_names_the_side_to_update_if_the_history_does_not(directory: RunDirectory) -> None:
    """The engine's first event cannot be read."""

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await read_command(reader) == Hello()
        writer.write(frame(CommandRefused(problem="of tomorrow", protocol=VERSION + 1)))
        writer.close()

    with directory.hold():
        server = await asyncio.start_unix_server(refusing, directory.socket)
        *_, last = await followed(directory)
        server.close()
    assert isinstance(last, wire.Disconnected)
    assert "update shardtui here" in last.reason


@pytest.mark.parametrize(
    ("last", "phase"),
    [(STOPPED, Phase.STOPPED), (FromTheFuture(), Phase.DISCONNECTED)],
    ids=["an end that is known", "an end that is not known"],
)
async def test_an_ended_run_of_a_newer_version_opens(directory: RunDirectory, last: Event, phase: Phase) -> None:
    record(directory, started(protocol=VERSION + 1), FromTheFuture(), wire.TrainingStarted(preset="dp"), last)
    async with shown(directory, False, (140, 40)) as (app, _):
        await until(lambda: app.state.phase is phase, "the end")
        assert app.state.preset == "dp"
        if phase is Phase.DISCONNECTED:
            assert "update shardtui" in app.state.problems[0]
            assert "ended without a message" not in app.state.problems[0]
        await until(lambda: status(app).endswith(phase.value), "the header")
