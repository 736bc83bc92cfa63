"""SIGKILL of one of several processes at a random moment; a new engine must resume on the same number or another."""

import asyncio
import os
import random
import signal
import time

import msgspec
from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.spec.config import CheckpointConfig, Restart
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import CheckpointSaved, EngineReady, Restored, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState

from ..conftest import tiny_config
from .row import Row

COUNTS = (2, 4)
LATEST = 3.0
"""Most seconds from the first checkpoint, or from the start of later engines, to the kill."""


def run(times: int) -> list[Row]:
    """Kills process 0 `times` times, and another process as often."""
    return [asyncio.run(_kills(times, first)) for first in (True, False)]


async def _kills(times: int, first: bool) -> Row:
    chance = random.Random(times + first)
    checkpoints = CheckpointConfig(every_steps=5, every_minutes=None)
    directory = run_directory.create(tiny_config(run=f"hosts-{int(first)}", checkpoints=checkpoints, processes=2))
    wrong: list[str] = []
    slowest = 0.0
    for number in range(times):
        found, seconds = await _kill(directory, chance, first, COUNTS[number % len(COUNTS)])
        wrong += found
        slowest = max(slowest, seconds)
    who = "process 0" if first else "another process"
    note = (
        "; ".join(wrong[:3]) or f"each named after {slowest:.0f} s at most, each run went on from its last checkpoint"
    )
    return Row(f"SIGKILL of {who}, of 2 and 4 in turn", times, times - len(wrong), note)


async def _kill(directory: RunDirectory, chance: random.Random, first: bool, count: int) -> tuple[list[str], float]:
    """Kills one process; returns what was wrong, and the seconds until the viewer knew which one was killed."""
    config = msgspec.structs.replace(directory.config, processes=count)
    place = CheckpointDirectory(epath.Path(directory.checkpoints(config)))
    newest = max(place.steps(), default=0)
    client, state = EngineClient(directory), RunState()
    client.start_engine(Restart(config=config))
    killing: asyncio.Task[float] | None = None
    victim = 0 if first else chance.randrange(1, count)
    committed, wrong, pid = newest, [], 0
    async for events in client.events():
        for event in events:
            apply(state, event)
            if client.is_old(event):
                continue
            match event:
                case EngineReady():
                    pid = next(host.pid for host in event.hosts if host.process == victim)
                case Restored() if event.step != newest or not event.digests_equal:
                    wrong.append(f"restored step {event.step}, {newest} was there")
                case TrainingStarted() if event.step != newest:
                    wrong.append(f"went on from {event.step}, {newest} was there")
                case CheckpointSaved():
                    committed = event.step
                case _:
                    pass
            if killing is None and isinstance(event, TrainingStarted if newest else CheckpointSaved):
                killing = asyncio.create_task(_kill_later(pid, chance.uniform(0, LATEST)))
    reported_at = time.monotonic()
    if killing is None:
        return [f"it ended before: {state.problems}"], 0.0
    if (
        list(state.hosts_lost) != [victim]
        or f"process {victim} " not in state.problems[0]
        or str(pid) not in state.problems[0]
    ):
        wrong.append(f"process {victim} was killed, told was {state.problems}")
    if max(place.steps(), default=0) < committed:
        wrong.append(f"step {committed} was committed, {place.steps()} are there")
    return wrong, reported_at - await killing


async def _kill_later(pid: int, seconds: float) -> float:
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()
