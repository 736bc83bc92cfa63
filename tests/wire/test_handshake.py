"""Viewers and engines of different versions: the message names the side to update, and the history still opens."""

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire import server as server_module
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, Stop
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import AnyEvent, Event
from shardtui.engine.wire.framing import VERSION, frame, read_event
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.engine.wire.server import Server
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.run_state import Phase

from ..conftest import tiny_config
from ..recorded import record, started
from ..tui.test_app import shown, status, until

SECONDS = 10
STOPPED = wire.EngineStopped(step=3, reason="stopped")


class FromTheFuture(Event, frozen=True):
    colour: str = "teal"


@contextmanager
def engine(directory: RunDirectory, *history: Event) -> Iterator[tuple[EventLog, queue.SimpleQueue[AnyCommand]]]:
    """Holds the lock and serves history and socket, as an engine does. Yields the log and the commands."""
    commands: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
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
    assert isinstance(refused, wire.CommandRefused)
    assert (refused.protocol, says in refused.problem) == (VERSION, True)


async def test_a_viewer_that_does_not_begin_with_hello_is_refused_but_may_stop_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.2)
    with engine(directory) as (_, commands):
        (refused,) = await answers(directory, Pause())
        assert isinstance(refused, wire.CommandRefused)
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
        received = await followed(directory, log, FromTheFuture(), wire.Paused(step=3), STOPPED)
    assert [type(event) for event in received] == [wire.EngineStarted, wire.Paused, wire.EngineStopped]


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
        assert await framing.read_command(reader) == Hello()
        writer.write(frame(wire.CommandRefused(problem="of tomorrow", protocol=VERSION + 1)))
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
