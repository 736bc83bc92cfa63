"""What a switch costs the steps: to a preset that was seen before, and to one that has to be compiled."""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

import msgspec
import numpy as np
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Stop, SwitchPreset
from shardtui.engine.wire.events import AnyEvent, StepsDone, Switched
from shardtui.tui.client.engine_client import EngineClient

from .figure import Figure, at_least, at_most
from .plain import config

ROUTE = ("dp", "fsdp", "tp", "fsdp-tp2")
ROUNDS = 4
"""The first sees each preset for the first time."""
STEPS_BETWEEN = 8
COPIED = 2**28


@dataclass
class Drive:
    """Asks for the next preset of the route once some steps are done under the one before."""

    wanted: list[str]
    switches: list[Switched] = field(default_factory=list[Switched])
    beside: list[int] = field(default_factory=list[int])
    """Steps done beside each preparation."""
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Of steps by preset, while nothing was compiled."""
    preset: str = ROUTE[0]
    asked_at: int | None = None
    step: int = 0

    async def run(self) -> None:
        client = EngineClient(run_directory.create(msgspec.structs.replace(config(), run="switching")))
        client.start_engine()
        async for events in client.events():
            for event in events:
                self.note(event)
            done = len(self.switches)
            since = self.step - (self.switches[-1].step if self.switches else 0)
            if self.asked_at is None and since >= STEPS_BETWEEN:
                self.asked_at = self.step
                await client.send(SwitchPreset(self.wanted[done]) if done < len(self.wanted) else Stop())

    def note(self, event: AnyEvent) -> None:
        match event:
            case StepsDone():
                self.step = event.step
                if self.asked_at is None:
                    self.seconds.setdefault(self.preset, []).extend(event.step_seconds)
            case Switched():
                self.beside.append(event.step - (self.asked_at or event.step))
                self.switches.append(event)
                self.preset, self.asked_at = event.to_preset, None
            case _:
                pass


def run() -> list[Figure]:
    drive = Drive([*(ROUTE * ROUNDS)[1:], ROUTE[0]])
    asyncio.run(drive.run())
    bandwidth = _copy_bandwidth()
    steps = {preset: median(seconds) for preset, seconds in drive.seconds.items()}

    def part(switch: Switched) -> float:
        step = min(steps[switch.from_preset], steps[switch.to_preset])
        return switch.stall_seconds / (2 * step + switch.bytes_moved / bandwidth)

    first = len(ROUTE) - 1
    new, known = drive.switches[:first], drive.switches[len(ROUTE) :]
    against = (
        f"steps of {1e3 * min(steps.values()):.0f} … {1e3 * max(steps.values()):.0f} ms, {bandwidth / 1e9:.1f} GB/s"
    )
    allowed = "(2 steps + bytes moved ÷ copy bandwidth)"
    return [
        at_most(1.0, f"stall to a preset seen before ÷ {allowed}", [part(switch) for switch in known], "×", against),
        at_most(1.0, f"stall to a new preset ÷ {allowed}", [part(switch) for switch in new], "×", against),
        at_most(0, "compiled for presets seen before", [switch.compile_seconds for switch in known], "s", "nothing"),
        at_least(
            1, "steps while a new preset compiles", list(map(float, drive.beside[:first])), "steps", "standing still"
        ),
    ]


def _copy_bandwidth() -> float:
    """Bytes/s of this machine from one part of its memory to another."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    seconds: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return COPIED / median(seconds)
