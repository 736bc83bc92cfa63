"""How long a switch stalls training: to a preset used before, and to one that has to be compiled."""

import asyncio
from dataclasses import dataclass, field
from statistics import median

import msgspec
import numpy as np
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Stop, SwitchPreset
from shardtui.engine.wire.events import AnyEvent, StepsDone, Switched
from shardtui.tui.client.engine_client import EngineClient

from .figure import Figure, at_least, at_most, timed
from .plain import config

ROUTE = ("dp", "fsdp", "tp", "fsdp-tp2")
ROUNDS = 4
"""Times that the route is taken; in the first round every preset is new."""
STEPS_BETWEEN = 8
COPIED = 2**28


@dataclass
class Drive:
    """A run that switches to the next preset of its route after some steps under each."""

    wanted: list[str]
    switches: list[Switched] = field(default_factory=list[Switched])
    meanwhile: list[int] = field(default_factory=list[int])
    """Steps made while each switch was prepared."""
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds of steps by preset, while nothing was compiled."""
    preset: str = ROUTE[0]
    requested_at: int | None = None
    """The step at which the pending switch was requested; None if none is pending."""
    step: int = 0

    async def run(self) -> None:
        client = EngineClient(run_directory.create(msgspec.structs.replace(config(), run="switching")))
        client.start_engine()
        async for events in client.events():
            for event in events:
                self.note(event)
            done = len(self.switches)
            since = self.step - (self.switches[-1].step if self.switches else 0)
            if self.requested_at is None and since >= STEPS_BETWEEN:
                self.requested_at = self.step
                await client.send(SwitchPreset(self.wanted[done]) if done < len(self.wanted) else Stop())

    def note(self, event: AnyEvent) -> None:
        match event:
            case StepsDone():
                self.step = event.step
                if self.requested_at is None:
                    self.seconds.setdefault(self.preset, []).extend(event.step_seconds)
            case Switched():
                self.meanwhile.append(event.step - (self.requested_at or event.step))
                self.switches.append(event)
                self.preset, self.requested_at = event.to_preset, None
            case _:
                pass


def run() -> list[Figure]:
    drive = Drive([*(ROUTE * ROUNDS)[1:], ROUTE[0]])
    asyncio.run(drive.run())
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    bandwidth = COPIED / median(timed(np.copyto, target, source) for _ in range(5))
    steps = {preset: median(seconds) for preset, seconds in drive.seconds.items()}

    def part(switch: Switched) -> float:
        step = min(steps[switch.from_preset], steps[switch.to_preset])
        return switch.stall_seconds / (2 * step + switch.bytes_moved / bandwidth)

    first = len(ROUTE) - 1
    new, known = drive.switches[:first], drive.switches[len(ROUTE) :]
    shortest, longest = 1e3 * min(steps.values()), 1e3 * max(steps.values())
    against = f"steps of {shortest:.0f} … {longest:.0f} ms, {bandwidth / 1e9:.1f} GB/s"
    allowed, meanwhile = "(2 steps + bytes moved ÷ copy bandwidth)", list(map(float, drive.meanwhile[:first]))
    return [
        at_most(1.0, f"stall to a preset seen before ÷ {allowed}", [part(switch) for switch in known], "×", against),
        at_most(1.0, f"stall to a new preset ÷ {allowed}", [part(switch) for switch in new], "×", against),
        at_most(0, "compiled for presets seen before", [switch.compile_seconds for switch in known], "s", "nothing"),
        at_least(1, "steps while a new preset compiles", meanwhile, "steps", "standing still"),
    ]
