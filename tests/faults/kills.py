"""SIGKILL of the engine at random moments; the next one must resume from the last committed checkpoint."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import SwitchPreset
from shardtui.engine.wire.events import (
    AnyEvent,
    CheckpointSaved,
    CheckpointSaving,
    PresetCompiling,
    Restored,
    StepsDone,
    Switching,
    TrainingStarted,
)
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import tiny_config
from .row import Row

MOMENTS = ("a step", "a save", "a switch", "a compilation")
LONGEST = {"a step": 1.0, "a save": 0.4, "a switch": 0.15, "a compilation": 2.0}
"""Most seconds from the event that begins the moment to the kill."""
PRESETS = ("dp", "fsdp", "tp", "dp-tp2", "hsdp", "fsdp-tp2")
RUNS = 2
"""Runs in parallel, one per core."""


@dataclass
class Story:
    """What is known of a run across all of its engines."""

    directory: RunDirectory
    chance: random.Random
    place: CheckpointDirectory = field(init=False)
    losses: dict[int, float] = field(default_factory=dict)
    repeated: int = 0
    """Number of steps that were repeated."""
    survived: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    committed: int = 0

    def __post_init__(self) -> None:
        self.place = CheckpointDirectory(epath.Path(self.directory.checkpoints(self.directory.config)))

    async def kill_in(self, moment: str) -> None:
        """Runs one engine until it is killed, and checks what it resumed from."""
        newest = max(self.place.steps(), default=0)
        client = EngineClient(self.directory)
        began = 0
        async for event in self._events(client, moment):
            match event:
                case TrainingStarted():
                    began = event.step
                case Restored() if event.step != newest or not event.digests_equal:
                    self.wrong.append(f"{moment}: restored step {event.step}, {newest} was there")
                case CheckpointSaved():
                    self.committed = event.step
                case StepsDone():
                    self._compare(event)
                case _:
                    pass
        if began not in (0, newest):
            self.wrong.append(f"{moment}: went on from {began}, {newest} was there")
        self._check_checkpoints(moment)

    async def _events(self, client: EngineClient, moment: str) -> AsyncIterator[AnyEvent]:
        """Kills the engine in the moment; yields its events until then."""
        client.start_engine()
        killing = None
        first = self.chance.random() < 0.5
        async for events in client.events():
            for event in events:
                if client.is_old(event):
                    continue
                yield event
                if isinstance(event, TrainingStarted) and moment in ("a switch", "a compilation"):
                    others = [preset for preset in PRESETS if preset != event.preset]
                    await client.send(SwitchPreset(self.chance.choice(others)))
                    first = True
                if killing is None and self._has_begun(moment, event, first):
                    killing = asyncio.ensure_future(self._kill(client, moment))

    def _has_begun(self, moment: str, event: AnyEvent, first: bool) -> bool:
        match moment:
            case "a step":
                return isinstance(event, TrainingStarted)
            case "a save":
                return isinstance(event, CheckpointSaving)
            case "a switch":
                return isinstance(event, Switching)
            case _:  # the first one, or that of a switch during the steps
                return isinstance(event, PresetCompiling) and first

    async def _kill(self, client: EngineClient, moment: str) -> None:
        await asyncio.sleep(self.chance.uniform(0, LONGEST[moment]))
        client.kill_engine()

    def _compare(self, event: StepsDone) -> None:
        """Checks that a repeated step has the same loss, under any preset."""
        for step, loss in enumerate(event.losses, event.step - len(event.losses) + 1):
            self.repeated += step in self.losses
            known = self.losses.setdefault(step, loss or math.nan)
            if loss is None or abs(loss - known) > 1e-5 * known:
                self.wrong.append(f"step {step}: loss {loss}, it was {known}")

    def _check_checkpoints(self, moment: str) -> None:
        wrong = len(self.wrong)
        steps = self.place.steps()
        if self.committed and (not steps or steps[-1] < self.committed):
            self.wrong.append(f"{moment}: step {self.committed} was committed, {steps} are there")
        for step in steps:
            try:
                self.place.checked(step)
            except Damaged as error:
                self.wrong.append(f"{moment}: checkpoint {step}: {error}")
        if aside := self.place.aside():
            self.wrong.append(f"{moment}: set aside: {aside}")
        self.survived[moment] += len(self.wrong) == wrong


def run(times: int) -> list[Row]:
    """Kills the engine `times` times in each moment."""
    stories = [_story(number) for number in range(RUNS)]

    async def all_kills() -> None:
        await asyncio.gather(*(_kills(story, times, number) for number, story in enumerate(stories)))

    asyncio.run(all_kills())
    survived = sum((story.survived for story in stories), Counter[str]())
    wrong = [text for story in stories for text in story.wrong]
    repeated = sum(story.repeated for story in stories)
    note = "; ".join(wrong[:3]) or f"every checkpoint good, the losses of {repeated:,} steps made again within 1e-5"
    return [Row(f"SIGKILL in {moment}", times, survived[moment], note) for moment in MOMENTS]


def _story(number: int) -> Story:
    config = tiny_config(run=f"kills-{number}", checkpoints=CheckpointConfig(every_steps=25, every_minutes=None))
    return Story(run_directory.create(config), random.Random(number))


async def _kills(story: Story, times: int, number: int) -> None:
    """Makes this run's share of `times` kills in each moment."""
    for _ in range(number, times, RUNS):
        for moment in MOMENTS:
            await story.kill_in(moment)
