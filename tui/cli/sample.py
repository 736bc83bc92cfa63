"""`shardtui sample`: text from the model of a run that trains, as it is now."""

import asyncio
import os
import sys

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import Sampling
from ...engine.wire import run_directory
from ...engine.wire.commands import SampleText
from ...engine.wire.events import Sampled
from ...engine.wire.run_directory import RunDirectory
from ..client.engine_client import EngineClient
from ..state.interpreter import apply_all
from ..state.run_state import RunState
from ..terminal.clean import json_line, printable
from ..terminal.exit_codes import FINE


def sample(run: str, sampling: Sampling, as_json: bool) -> int:
    """Prints a sample. Raises Invalid if the run cannot make one."""
    directory = run_directory.find(run)
    if watched := directory.watched:
        raise Invalid(watched.refusal)
    holder = directory.holder()
    if holder is None or not holder.is_alive:
        raise Invalid(
            f"run {run} has ended, and only an engine has the model: `shardtui train --resume {run}` trains on, "
            "and `--sample-every N` samples meanwhile"
        )
    event = asyncio.run(_requested(directory, sampling))
    if event.problem:
        raise Invalid(f"run {run}: {event.problem}")
    if as_json:
        print(json_line(event))
        return FINE
    for line in (sampling.prompt + event.text).split("\n"):
        print(printable(line))
    print(f"step {event.step:,} of {run} under {event.preset}: {_cost(event)}", file=sys.stderr)
    return FINE


def _cost(event: Sampled) -> str:
    compiled = f", compiled in {figures.seconds(event.compile_seconds)}" if event.compile_seconds else ""
    return f"training waited {figures.seconds(event.seconds)} for {event.sampling.tokens} tokens{compiled}"


async def _requested(directory: RunDirectory, sampling: Sampling) -> Sampled:
    """Requests a sample and waits for it. Raises Invalid if the run ends before."""
    client, state = EngineClient(directory), RunState()
    number, has_asked = os.getpid(), False
    async for events in client.events(cleaned=False):
        apply_all(state, events)
        for event in events if has_asked else ():
            if isinstance(event, Sampled) and event.number == number:
                return event
        if not events and not has_asked:  # the history has ended
            has_asked = True
            await client.send(SampleText(number, sampling))
    raise Invalid(f"run {directory.name} ended before its sample: {'; '.join(state.problems) or 'no more steps'}")
