"""SIGTERM at random moments: the engine saves its state and exits 0, and the next one resumes from there."""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field

from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Pause, SaveCheckpoint, SwitchPreset
from shardtui.engine.wire.events import (
    AnyEvent,
    CheckpointSaving,
    EngineStopped,
    Paused,
    PresetCompiling,
    StepsDone,
    Switching,
    TrainingStarted,
)
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import SETTINGS, SHARDTUI, tiny_config
from .row import Row

PRESETS = ("dp", "fsdp", "tp", "hsdp")
MOMENTS = {
    "a step": StepsDone,
    "a save": CheckpointSaving,
    "a switch": Switching,
    "a pause": Paused,
    "the first compilation": PresetCompiling,
}
"""The event after which the signal is sent, by moment."""
LONGEST = {"a step": 1.0, "a save": 0.3, "a switch": 0.1, "a pause": 0.5, "the first compilation": 0.5}
"""Most seconds from the event to the signal."""


@dataclass
class Story:
    """A run that is stopped and resumed repeatedly."""

    directory: RunDirectory
    chance: random.Random
    reached: int = 0
    survived: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    async def end_in(self, moment: str) -> None:
        """Runs one engine, ends it in the moment, and checks what it resumed from and saved."""
        wrong = len(self.wrong)
        found = await self._ended_in(moment)
        begun = [event.step for event in found if isinstance(event, TrainingStarted)]
        done = max((event.step for event in found if isinstance(event, StepsDone)), default=self.reached)
        last = found[-1]
        steps = CheckpointDirectory(epath.Path(self.directory.checkpoints(self.directory.config))).steps()
        if begun not in ([], [self.reached]):
            self.wrong.append(f"{moment}: went on from {begun}, {self.reached} was reached")
        if not isinstance(last, EngineStopped) or (last.step, last.reason) != (done, "signalled"):
            self.wrong.append(f"{moment}: {done} steps were done, the last word was {last}")
        if (steps or [0])[-1] != done:
            self.wrong.append(f"{moment}: {done} steps were done, saved are {steps}")
        self.reached = done
        self.survived[moment] += len(self.wrong) == wrong

    async def _ended_in(self, moment: str) -> list[AnyEvent]:
        """Returns the events of one engine from its start until the signal ends it."""
        client = EngineClient(self.directory)
        client.start_engine()
        found: list[AnyEvent] = []
        pid, is_sent = 0, False
        async for events in client.events():
            for event in events:
                if client.is_old(event):
                    continue
                found.append(event)
                pid = pid or getattr(event, "pid", 0)
                if isinstance(event, TrainingStarted):
                    await self._start(moment, client, event.preset)
                if not is_sent and isinstance(event, MOMENTS[moment]):
                    await asyncio.sleep(self.chance.uniform(0, LONGEST[moment]))
                    os.kill(pid, signal.SIGTERM)
                    is_sent = True
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_status or ended.si_code != os.CLD_EXITED:
            self.wrong.append(f"{moment}: it ended with {ended}")
        return found

    async def _start(self, moment: str, client: EngineClient, active: str) -> None:
        match moment:
            case "a save":
                await client.send(SaveCheckpoint())
            case "a switch":
                await client.send(SwitchPreset(self.chance.choice([other for other in PRESETS if other != active])))
            case "a pause":
                await client.send(Pause())
            case _:
                pass

    def outcome(self, moment: str) -> tuple[int, str]:
        """Returns how often the run survived the moment, and a note for the row."""
        wrong = [text for text in self.wrong if text.startswith(moment)]
        return self.survived[moment], "; ".join(wrong[:3]) or "exit 0, every step saved, gone on from there"


def run(times: int) -> list[Row]:
    """Sends `times` SIGTERMs to the engine in each moment, and SIGTERM and SIGINT to `train` once each."""
    config = tiny_config(run="signals", checkpoints=CheckpointConfig(every_minutes=None))
    story = Story(run_directory.create(config), random.Random(0))

    async def all_ends() -> None:
        for _ in range(times):
            for moment in MOMENTS:
                await story.end_in(moment)

    asyncio.run(all_ends())
    return [
        *(Row(f"SIGTERM to the engine in {moment}", times, *story.outcome(moment)) for moment in MOMENTS),
        _train(signal.SIGTERM, 0),
        _train(signal.SIGINT, 130),
    ]


def _train(number: signal.Signals, code: int) -> Row:
    """Sends the signal to `train`, which passes it on to the engine."""
    process = subprocess.Popen(
        [*SHARDTUI, "train", "--json", "--steps=1000000", *SETTINGS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    next(line for line in process.stdout if b"StepDone" in line)
    process.send_signal(number)
    events = [json.loads(line) for line in process.stdout]
    steps = [event["step"] for event in events if event["type"] == "StepDone"]
    saved = [event["step"] for event in events if event["type"] == "CheckpointSaved"]
    good = process.wait() == code and saved == steps[-1:]
    return Row(f"{number.name} to `train`", 1, good, f"exit {process.returncode}, step {steps[-1]} saved as {saved}")
