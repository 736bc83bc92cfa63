"""SIGKILL and SIGTERM of the engine at random moments: the next one resumes from the last committed checkpoint, after
SIGTERM from the last step."""

import asyncio
import math
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import events, run_directory
from shardtui.engine.wire.commands import Pause, SaveCheckpoint, SwitchPreset
from shardtui.engine.wire.events import AnyEvent, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import tiny_config
from .row import Row

MOMENTS: dict[str, tuple[type[AnyEvent], float]] = {
    "a step": (TrainingStarted, 1.0),
    "a save": (events.CheckpointSaving, 0.4),
    "a switch": (events.Switching, 0.15),
    "a compilation": (events.PresetCompiling, 2.0),
    "a pause": (events.Paused, 0.5),
}
"""The event that begins the moment, and the most seconds from it to the signal."""
FAULTS = [
    *((signal.SIGKILL, moment) for moment in MOMENTS if moment != "a pause"),
    *((signal.SIGTERM, moment) for moment in MOMENTS),
]
NOTES = {signal.SIGKILL: "every checkpoint good", signal.SIGTERM: "exit 0, every step saved"}
PRESETS = ("dp", "fsdp", "tp", "dp-tp2", "hsdp", "fsdp-tp2")
RUNS = 2
"""Runs in parallel, one per core."""


@dataclass
class Story:
    """What is known of a run across all of its engines."""

    directory: RunDirectory
    chance: random.Random
    losses: dict[int, float] = field(default_factory=dict)
    repeated: int = 0
    """Number of steps that were repeated."""
    survived: Counter[tuple[signal.Signals, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    committed: int = 0

    def __post_init__(self) -> None:
        self.place = CheckpointDirectory(epath.Path(self.directory.checkpoints(self.directory.config)))

    async def end_by(self, number: signal.Signals, moment: str) -> None:
        """Runs one engine until the signal ends it in the moment; checks what it resumed from and what it saved."""
        newest, before = max(self.place.steps(), default=0), len(self.wrong)
        where = f"{number.name} in {moment}"
        began, last, pid = newest, None, 0
        async for event in self._events(number, moment):
            last, pid = event, pid or getattr(event, "pid", 0)
            match event:
                case TrainingStarted():
                    began = event.step
                case events.Restored() if event.step != newest:
                    self.wrong.append(f"{where}: restored step {event.step}, {newest} was there")
                case events.CheckpointSaved():
                    self.committed = event.step
                case StepsDone():
                    self._compare(event)
                case _:
                    pass
        if began != newest:
            self.wrong.append(f"{where}: went on from {began}, {newest} was there")
        if number is signal.SIGTERM:
            self._check_stop(where, last, pid)
        self._check_checkpoints(where)
        self.survived[number, moment] += len(self.wrong) == before

    async def _events(self, number: signal.Signals, moment: str) -> AsyncIterator[AnyEvent]:
        """Sends the signal in the moment; yields the engine's events until it ends."""
        client = EngineClient(self.directory)
        client.start_engine()
        pid, begins, ending = 0, self.chance.random() < 0.5, None
        async for chunk in client.events():
            for event in chunk:
                if client.is_old(event):
                    continue
                yield event
                pid = pid or getattr(event, "pid", 0)
                if isinstance(event, TrainingStarted):
                    begins |= await self._ask(client, moment, event.preset)
                kind = MOMENTS[moment][0]
                if ending is None and isinstance(event, kind) and (begins or kind is not events.PresetCompiling):
                    ending = asyncio.ensure_future(self._end(pid, number, moment))

    async def _ask(self, client: EngineClient, moment: str, active: str) -> bool:
        """Asks for what the moment is part of; True if it compiles then."""
        other = SwitchPreset(self.chance.choice([preset for preset in PRESETS if preset != active]))
        asked = {"a switch": other, "a compilation": other, "a pause": Pause(), "a save": SaveCheckpoint()}
        if moment in asked:
            await client.send(asked[moment])
        return moment == "a compilation"

    async def _end(self, pid: int, number: signal.Signals, moment: str) -> None:
        await asyncio.sleep(self.chance.uniform(0, MOMENTS[moment][1]))
        os.kill(pid, number)

    def _compare(self, event: StepsDone) -> None:
        """Checks that a repeated step has the same loss, under any preset."""
        for step, loss in enumerate(event.losses, event.step - len(event.losses) + 1):
            self.repeated += step in self.losses
            known = self.losses.setdefault(step, loss or math.nan)
            if loss is None or abs(loss - known) > 1e-5 * known:
                self.wrong.append(f"step {step}: loss {loss}, it was {known}")

    def _check_stop(self, where: str, last: AnyEvent | None, pid: int) -> None:
        if not isinstance(last, events.EngineStopped) or last.reason != "signalled":
            self.wrong.append(f"{where}: the last word was {last}")
        elif self.place.steps()[-1:] != [last.step] * bool(last.step):
            self.wrong.append(f"{where}: {last.step} steps were done, saved are {self.place.steps()}")
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_status or ended.si_code != os.CLD_EXITED:
            self.wrong.append(f"{where}: it ended with {ended}")

    def _check_checkpoints(self, where: str) -> None:
        steps = self.place.steps()
        if self.committed and (not steps or steps[-1] < self.committed):
            self.wrong.append(f"{where}: step {self.committed} was committed, {steps} are there")
        for step in steps:
            try:
                self.place.checked(step)
            except Damaged as error:
                self.wrong.append(f"{where}: checkpoint {step}: {error}")
        if aside := self.place.aside():
            self.wrong.append(f"{where}: set aside: {aside}")


def run(times: int) -> list[Row]:
    """Ends the engine `times` times by each signal in each moment."""
    stories = [_story(number) for number in range(RUNS)]

    async def ends(number: int) -> None:
        for fault in (FAULTS * times)[number::RUNS]:
            await stories[number].end_by(*fault)

    async def all_ends() -> None:
        await asyncio.gather(*map(ends, range(RUNS)))

    asyncio.run(all_ends())
    survived = sum((story.survived for story in stories), Counter[tuple[signal.Signals, str]]())
    wrong = "; ".join([text for story in stories for text in story.wrong][:3])
    same = f"the losses of {sum(story.repeated for story in stories):,} steps made again within 1e-5"
    return [
        Row(f"{number.name} in {moment}", times, survived[number, moment], wrong or f"{NOTES[number]}, {same}")
        for number, moment in FAULTS
    ]


def _story(number: int) -> Story:
    config = tiny_config(run=f"kills-{number}", checkpoints=CheckpointConfig(every_steps=25, every_minutes=None))
    return Story(run_directory.create(config), random.Random(number))
