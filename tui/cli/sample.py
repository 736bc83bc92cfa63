"""`shardtui sample`: text from the model of a run that trains, as it is now."""

import argparse
import asyncio
import math
import os

from ...engine.base import formatting
from ...engine.base.output import note, show
from ...engine.base.user_error import UserError, refuse
from ...engine.spec.config import MOST_PROMPTED, MOST_SAMPLED, Sampling
from ...engine.wire import run_directory
from ...engine.wire.commands import SampleText
from ...engine.wire.events import Sampled
from ...engine.wire.run_directory import RunDirectory
from ..client.engine_client import EngineClient
from ..state.interpreter import apply_all
from ..state.run_state import RunState
from ..terminal import FINE
from ..terminal.clean import json_line
from .options import add_json_option, add_run_argument


def sample_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="the text to continue; default: a line break")
    add("--tokens", type=int, default=64, metavar="N", help=f"bytes to sample, {MOST_SAMPLED:,} at most; default 64")
    add("--temperature", type=float, default=1.0, metavar="T", help="divides the logits; 0: the most probable byte")
    add("--seed", type=int, default=0, metavar="S", help="seed of the sample; default 0")
    add_json_option(parser)


def sample_command(options: argparse.Namespace) -> int:
    run, sampling = options.run, _sampling(options)
    directory = run_directory.find(run)
    if watched := directory.watched:
        raise UserError(watched.refusal)
    if not directory.is_alive:
        raise UserError(
            f"run {run} has ended, and only an engine has the model: `shardtui train --resume {run}` trains on, "
            "and `--sample-every N` samples meanwhile"
        )
    event = asyncio.run(_requested(directory, sampling))
    if event.problem:
        raise UserError(f"run {run}: {event.problem}")
    if options.json:
        show(json_line(event))
        return FINE
    show(*(sampling.prompt + event.text).split("\n"))
    compiled = f", compiled in {formatting.seconds(event.compile_seconds)}" if event.compile_seconds else ""
    cost = f"training waited {formatting.seconds(event.seconds)} for {event.sampling.tokens} tokens{compiled}"
    note(f"step {event.step:,} of {run} under {event.preset}: {cost}")
    return FINE


def _sampling(options: argparse.Namespace) -> Sampling:
    found = Sampling(prompt=options.prompt, tokens=options.tokens, temperature=options.temperature, seed=options.seed)
    checks = [
        (1 <= found.tokens <= MOST_SAMPLED, f"--tokens {found.tokens}: must be from 1 to {MOST_SAMPLED:,}"),
        (0 <= found.temperature < math.inf, f"--temperature {found.temperature}: must be 0 or more"),
        (0 <= found.seed < 2**32, f"--seed {found.seed}: must be from 0 to {2**32 - 1}"),
        (len(found.prompt) <= MOST_PROMPTED, f"--prompt: {len(found.prompt):,} characters: at most {MOST_PROMPTED:,}"),
    ]
    refuse([text for holds, text in checks if not holds])
    return found


async def _requested(directory: RunDirectory, sampling: Sampling) -> Sampled:
    client, state = EngineClient(directory), RunState()
    number, has_asked = os.getpid(), False
    async for events in client.events():
        apply_all(state, events)
        for event in events if has_asked else ():
            if isinstance(event, Sampled) and event.number == number:
                return event
        if not events and not has_asked:  # the history has ended
            has_asked = True
            await client.send(SampleText(number, sampling))
    raise UserError(f"run {directory.name} ended before its sample: {'; '.join(state.problems) or 'no more steps'}")
