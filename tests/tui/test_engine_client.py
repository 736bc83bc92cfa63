"""Each engine has its own end, and a viewer can always leave."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.wire import lock, run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.engine.wire.event_log import EventLog
from shardtui.engine.wire.events import AnyEvent, Disconnected, EngineLost, EngineStopped, StepsDone, TrainingStarted
from shardtui.tui.cli.run import attach_command
from shardtui.tui.client.connection import Connection
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import least_config, tiny_config

SECONDS = 60


async def until(kind: type[AnyEvent], stream: AsyncIterator[list[AnyEvent]]) -> AnyEvent:
    async with asyncio.timeout(SECONDS):
        async for events in stream:
            if found := next((event for event in events if isinstance(event, kind)), None):
                return found
    raise AssertionError(f"it ended without {kind.__name__}")


async def test_the_end_of_one_engine_is_not_reported_for_another(home: object) -> None:
    """The first engine is killed while no events are read; the second one runs when they are."""
    client = EngineClient(run_directory.create(least_config()))
    client.start_engine()
    first = aiter(client.events())
    await until(StepsDone, first)
    client.kill_engine()
    assert await client.wait_for_exit()
    client.start_engine()
    second = aiter(client.events())
    await until(StepsDone, second)
    lost = await until(EngineLost, first)
    assert "SIGKILL" in lost.reason
    await client.send(Stop())
    assert isinstance(await until(EngineStopped, second), EngineStopped)
    assert [events async for events in second] == []


async def test_between_two_epochs_a_viewer_waits_for_the_next_engine(home: object) -> None:
    directory = run_directory.create(tiny_config())
    with directory.hold():
        EventLog(directory.events, lambda _: None).append(TrainingStarted(preset="dp", step=0))
    supervisor = lock.take(directory.supervisor_lock)
    directory.shown_on.write_text("tpu-7")
    stream = aiter(EngineClient(directory).events())
    assert [type(event) for event in await anext(stream)] == [TrainingStarted]
    assert await anext(stream) == [], "the end of the history"
    (elsewhere,) = await anext(stream)
    assert isinstance(elsewhere, Disconnected)
    assert elsewhere.reason == f"process 0 is on tpu-7: `shardtui attach {directory.name}` there shows the run"
    following = asyncio.ensure_future(until(EngineLost, stream))
    _, waiting = await asyncio.wait([following], timeout=0.3)
    assert waiting, "the run has not ended"
    supervisor.close()
    await following


def test_a_run_without_events_is_not_shown_as_crashed(home: object) -> None:
    directory = run_directory.create(tiny_config())
    with lock.take(directory.supervisor_lock):
        with pytest.raises(UserError, match="has not started yet: attach again in some"):
            attach_command(Namespace(run=directory.name))
        directory.shown_on.write_text("tpu-7")
        with pytest.raises(UserError, match="process 0 is on tpu-7: "):
            attach_command(Namespace(run=directory.name))


@pytest.mark.slow
def test_a_suspended_engine_blocks_neither_sending_nor_leaving(home: object) -> None:
    directory = run_directory.create(least_config())

    async def scenario() -> float:
        client = EngineClient(directory)
        client.start_engine()
        stream = aiter(client.events())
        await until(StepsDone, stream)
        following = asyncio.create_task(until(EngineStopped, stream))
        holder = directory.holder()
        os.kill(holder.pid, signal.SIGSTOP)
        async with asyncio.timeout(SECONDS):
            for _ in range(20_000):  # more than the socket's buffers hold
                await client.send(Stop())
        following.cancel()
        return time.monotonic()

    left = asyncio.run(scenario())
    assert time.monotonic() - left < SECONDS / 2


FORKS = """
import os, socket, sys, time
from pathlib import Path
from shardtui.engine.wire.run_directory import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
lock, server = directory.hold(), socket.socket(socket.AF_UNIX)
server.bind(str(directory.socket))
server.listen()
print("listens", flush=True)
connection, _ = server.accept()
os.fork()
time.sleep(60)
"""


async def test_a_child_that_keeps_the_connection_of_a_killed_engine_holds_up_no_viewer(home: object) -> None:
    directory = run_directory.create(tiny_config())
    command = [sys.executable, "-c", FORKS, str(directory.path)]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert engine.stdout and engine.stdout.readline()
        connection = Connection(directory, None)
        await connection.open()
        await asyncio.sleep(0.5)  # until it has forked
        engine.kill()
        engine.wait()
        assert await asyncio.wait_for(connection.read(), 10) is None
    finally:
        os.killpg(engine.pid, signal.SIGKILL)
        engine.stdout.close()  # type: ignore[union-attr]
