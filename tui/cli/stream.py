"""`shardtui stream`: the far end of `shardtui attach HOST:RUN`: events to stdout, commands from stdin."""

import argparse
import asyncio
import stat
import sys
import zlib

from ...engine.base.output import show
from ...engine.base.user_error import UserError
from ...engine.wire import framing
from ...engine.wire.event import VERSION
from ...engine.wire.events import EngineStarted
from ..client.engine_client import EngineClient
from ..client.remote_client import GREETING
from ..terminal import FINE
from .headless import file_type
from .options import add_run_argument
from .run import attachable


def stream_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, is_optional=True)
    parser.add_argument("--since", type=int, default=0, metavar="N", help="leave out the first N events")


def stream_command(options: argparse.Namespace) -> int:
    if not {file_type(0), file_type(1)} <= {stat.S_IFIFO, stat.S_IFSOCK}:
        raise UserError("stream: stdin or stdout is not a pipe, as ssh makes them: `shardtui attach` shows a run")
    client = attachable(options.run)
    client.seq = options.since
    show(f"{GREETING} {VERSION} {client.directory.name}")
    asyncio.run(_stream(client))
    return FINE


async def _stream(client: EngineClient) -> None:
    """Returns once stdin is closed: nobody watches any more."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    both = [asyncio.ensure_future(_send_events(client)), asyncio.ensure_future(_obey(client, reader))]
    done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()


async def _send_events(client: EngineClient) -> None:
    """Sends the events of the run's engines, one after the other."""
    compressor = zlib.compressobj()

    def send(events: framing.Batch) -> None:
        sys.stdout.buffer.write(compressor.compress(framing.frame(events)) + compressor.flush(zlib.Z_SYNC_FLUSH))
        sys.stdout.buffer.flush()

    pid = None
    while True:
        async for events in client.events():
            pid = next((event.pid for event in reversed(events) if isinstance(event, EngineStarted)), pid)
            send(events)
        send(None)
        await client.resumed_elsewhere(pid)


async def _obey(client: EngineClient, reader: asyncio.StreamReader) -> None:
    while True:
        try:
            await client.send(await framing.read_command(reader))
        except framing.UnknownMessage:
            continue
        except (asyncio.IncompleteReadError, framing.BadFrame):
            return
