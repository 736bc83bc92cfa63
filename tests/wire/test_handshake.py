"""Viewers and engines of different versions: the message names the side to update, and the history still opens."""

import asyncio
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire import server as server_module
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, Stop
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import (
    AnyEvent,
    CommandRefused,
    Disconnected,
    EngineStarted,
    EngineStopped,
    Event,
    Paused,
    TrainingStarted,
)
from shardtui.engine.wire.framing import VERSION, frame, read_event
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.engine.wire.server import Server
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.run_state import Phase

from ..conftest import tiny_config
from ..recorded import record
from ..tui.test_app import shown, status, until

SECONDS = 10


class FromTheFuture(Event, frozen=True):
    """An event that this version does not know."""

    colour: str = "teal"


class Engine:
    """The parts of an engine that viewers use: the lock, the history and the socket."""

    def __init__(self, directory: RunDirectory) -> None:
        self.commands: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
        self.server = Server(directory.socket, self.commands.put)
        self.log = EventLog(directory.events, self.server.publish)


@contextmanager
def engine(directory: RunDirectory, *history: Event) -> Iterator[Engine]:
    with directory.hold():
        living = Engine(directory)
        for event in history:
            living.log.append(event)
        living.server.start()
        try:
            yield living
        finally:
            living.server.close()
            living.log.close()


@pytest.fixture
def directory(home: object) -> RunDirectory:
    return run_directory.create(tiny_config())


def started(directory: RunDirectory, version: int = VERSION) -> EngineStarted:
    return EngineStarted(protocol=version, pid=1, config=directory.config)


async def answers(directory: RunDirectory, *commands: AnyCommand) -> list[AnyEvent]:
    """Returns all events that a viewer receives until the engine closes the connection."""
    reader, writer = await asyncio.open_unix_connection(directory.socket)
    writer.write(b"".join(map(frame, commands)))
    found: list[AnyEvent] = []
    while not found or not reader.at_eof():
        try:
            found.append(await asyncio.wait_for(read_event(reader), SECONDS))
        except asyncio.IncompleteReadError:
            break
    writer.close()
    return found


@pytest.mark.parametrize(
    ("commands", "says"),
    [([Hello(VERSION - 1)], "update shardtui here"), ([Hello(VERSION + 1)], "restart the run with this version")],
    ids=["older", "newer"],
)
def test_a_viewer_of_another_version_learns_which_side_to_update(
    directory: RunDirectory, commands: Sequence[AnyCommand], says: str
) -> None:
    with engine(directory) as living:
        (refused,) = asyncio.run(answers(directory, *commands))
        assert living.commands.empty()
    assert isinstance(refused, CommandRefused)
    assert (refused.protocol, says in refused.problem) == (VERSION, True)


def test_a_viewer_that_does_not_begin_with_hello_is_refused(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.2)
    with engine(directory) as living:
        (refused,) = asyncio.run(answers(directory, Pause()))
        assert isinstance(refused, CommandRefused)
        assert "is `Hello`" in refused.problem
        assert asyncio.run(answers(directory)) == []
        assert living.commands.empty()


def test_a_viewer_of_any_version_may_stop_the_run(directory: RunDirectory) -> None:
    with engine(directory) as living:
        asyncio.run(answers(directory, Stop(), Hello(VERSION + 1)))
        assert living.commands.get(timeout=SECONDS) == Stop()


async def followed(directory: RunDirectory, living: Engine | None = None, *more: Event) -> list[AnyEvent]:
    """Returns all events that a viewer receives; `more` are published once it is connected."""
    found: list[AnyEvent] = []
    async for events in EngineClient(directory).events():
        found += events
        if not events and living:
            await asyncio.sleep(0.2)
            for event in more:
                living.log.append(event)
            more = ()
    return found


def test_an_unknown_event_is_skipped(directory: RunDirectory) -> None:
    with engine(directory, started(directory)) as living:
        received = asyncio.run(
            followed(directory, living, FromTheFuture(), Paused(step=3), EngineStopped(step=3, reason="stopped"))
        )
    assert [type(event) for event in received] == [EngineStarted, Paused, EngineStopped]


@pytest.mark.parametrize(
    ("version", "says"), [(VERSION - 1, "restart the run with this version"), (VERSION + 1, "update shardtui")]
)
def test_the_history_of_a_living_engine_of_another_version_is_shown(
    directory: RunDirectory, version: int, says: str
) -> None:
    with engine(directory, started(directory, version), FromTheFuture(), TrainingStarted(preset="dp")):
        *received, last = asyncio.run(followed(directory))
    assert [type(event) for event in received] == [EngineStarted, TrainingStarted]
    assert isinstance(last, Disconnected)
    assert says in last.reason
    assert f"protocol {VERSION}, the engine of the run protocol {version}" in last.reason


def test_the_refusal_names_the_side_to_update_if_the_history_does_not(directory: RunDirectory) -> None:
    """The engine's first event cannot be read."""

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await framing.read_command(reader) == Hello()
        writer.write(frame(CommandRefused(problem="of tomorrow", protocol=VERSION + 1)))
        writer.close()

    async def scenario() -> list[AnyEvent]:
        server = await asyncio.start_unix_server(refusing, directory.socket)
        try:
            return await followed(directory)
        finally:
            server.close()

    with directory.hold():
        *_, last = asyncio.run(scenario())
    assert isinstance(last, Disconnected)
    assert "update shardtui here" in last.reason


@pytest.mark.parametrize(
    ("last", "phase"),
    [(EngineStopped(step=3, reason="stopped"), Phase.STOPPED), (FromTheFuture(), Phase.DISCONNECTED)],
    ids=["an end that is known", "an end that is not known"],
)
def test_an_ended_run_of_a_newer_version_opens(directory: RunDirectory, last: Event, phase: Phase) -> None:
    record(directory, started(directory, VERSION + 1), FromTheFuture(), TrainingStarted(preset="dp"), last)

    async def scenario() -> None:
        async with shown(directory, False, (140, 40)) as (app, _):
            await until(lambda: app.state.phase is phase, "the end")
            assert app.state.preset == "dp"
            if phase is Phase.DISCONNECTED:
                assert "update shardtui" in app.state.problems[0]
                assert "ended without a message" not in app.state.problems[0]
            await until(lambda: status(app).endswith(phase.value), "the header")

    asyncio.run(scenario())
