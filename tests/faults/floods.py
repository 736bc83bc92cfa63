"""Floods of commands and presets, and code that does not return: memory stays bounded, steps continue, and a stop
ends the run."""

import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import get_args

from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.wire import commands, events, framing
from shardtui.engine.wire.commands import AnyCommand, SwitchPreset
from shardtui.engine.wire.events import AnyEvent
from shardtui.engine.wire.inbox import MAX_WAITING

from ..processes import awaited
from ..suite import memory
from ..training.test_watchdog import MODEL
from .launched import Launched, shardtui
from .living import Living, living_engine
from .row import Row, together, tried

PRESETS = ("fsdp", "tp", "hsdp", "dp-tp2", "fsdp-tp2", "dp-tp4", "sp2", "fsdp-tp4", "fsdp-tp8", "dp-sp2", "pp2")
INTERVAL_SECONDS = 0.4
"""Seconds between two requests of a user who tries presets."""
BYTES_PER_PROGRAM = 80e6
"""Bytes that a compiled program of the small model may take, with its trace and its transfers."""
EXTRA_BYTES = 400e6
"""Bytes allowed in addition."""
STOP_SECONDS = 10.0
"""Time for a flooded engine to save and end; without a flood it takes a second or two."""
DEADLINE = 5.0
"""Seconds of --stop-timeout for code that does not return."""


ANY = get_args(AnyEvent)


def run(times: int) -> Iterator[Row]:
    """Runs each flood once; `times` scales the commands of every kind."""
    for flood in (_try_presets, _alternate, _add_presets, partial(_send_everything, times), _send_previews):
        yield flood()
    for name, text in BLOCKED.items():
        yield tried(name, 2, partial(_blocked, name.replace(" ", "-"), text, iter(("SIGTERM", "stop"))))


def _send(living: Living, sent: Iterable[AnyCommand], interval: float = 0.0) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(living.directory.socket))
        connection.settimeout(60)
        for command in chain([commands.Hello()], sent):
            while select.select([connection], [], [], 0)[0]:
                connection.recv(1 << 20)
            connection.sendall(framing.frame(command))
            time.sleep(interval)
        time.sleep(0.2)


def _switched(living: Living, preset: str, seconds: float) -> float | None:
    """Returns the seconds until the run was switched to the preset; None if it was not."""
    began = time.monotonic()
    with suppress(TimeoutError):
        awaited(
            lambda: preset in [event.to_preset for event in living.of(events.Switched)], preset, seconds, living.is_over
        )
        return time.monotonic() - began
    return None


class Growth:
    """Memory that an engine takes at most from now on."""

    def __init__(self, living: Living) -> None:
        self._pid = living.process.pid
        self._before = memory("VmRSS", self._pid)

    def measure(self) -> None:
        self.bytes = memory("VmHWM", self._pid) - self._before

    @property
    def words(self) -> str:
        return f"{self.bytes / 1e6:.0f} MB more"

    def problem(self, programs: int, factor: int) -> str:
        """Returns what is wrong if it is more than these programs take, and `EXTRA_BYTES` so many times."""
        return self.words * (self.bytes > programs * BYTES_PER_PROGRAM + factor * EXTRA_BYTES)


def _end(living: Living) -> str:
    """Stops the engine and returns what was wrong with its end; empty if nothing."""
    began = time.monotonic()
    _send(living, [commands.Stop()])
    with suppress(subprocess.TimeoutExpired):
        living.process.wait(STOP_SECONDS)
    last = living.events()[-1]
    if not living.is_over() or not isinstance(last, events.EngineStopped):
        return f"not ended {time.monotonic() - began:.0f} s after `stop`"
    saved = [event.step for event in living.of(events.CheckpointSaved)]
    return "" if saved[-1:] == [last.step] else f"step {last.step} was done, saved are {saved[-3:]}"


def _try_presets() -> Row:
    """Requests one switch, then one for every preset."""
    with living_engine("floods-presets") as living:
        _send(living, [SwitchPreset("fsdp")])
        alone = _switched(living, "fsdp", 120)
        growth = Growth(living)
        names = [name for name in PRESETS if name not in ("fsdp", "pp2")] + ["pitfall-same-axis", "dp"] * 2 + ["pp2"]
        _send(living, map(SwitchPreset, names), INTERVAL_SECONDS)
        last = _switched(living, "pp2", 120)
        growth.measure()
        compiled = len({event.preset for event in living.of(events.PresetCompiled)})
        wrong = [living.problem(*ANY), _end(living), growth.problem(compiled, 1)]
    if alone is None or last is None:
        wrong.append(f"switched after {alone} s and {last} s")
    elif last > 3 * alone + 5:
        wrong.append(f"one request took {alone:.1f} s, the last of {len(names)} {last:.1f} s")
    seconds = f"the last one took {last or 0:.1f} s, one alone {alone or 0:.1f} s"
    seen = f"{seconds}; {compiled} were compiled, {growth.words}"
    return together(f"{len(names)} presets, one every {INTERVAL_SECONDS} s", 1, *wrong, seen=seen)


def _alternate() -> Row:
    count = 10_000
    with living_engine("floods-alternating") as living:
        growth, steps = Growth(living), len(living.of(events.StepsDone))
        began = time.monotonic()
        _send(living, (SwitchPreset(("tp", "fsdp")[number % 2]) for number in range(count)))
        seconds, made = time.monotonic() - began, len(living.of(events.StepsDone)) - steps
        problem = living.problem(*ANY)
        growth.measure()
        wrong = [problem, _end(living), growth.problem(0, 3)]
    seen = f"in {seconds:.1f} s, {made} reports of steps meanwhile, {growth.words}"
    return together(f"{count:,} alternating switches", count, *wrong, seen=seen)


def _add_presets() -> Row:
    count, text = 300, preset_text(load_preset("fsdp"))
    with living_engine("floods-added") as living:
        growth = Growth(living)
        _send(living, _added(living, text, count), 0.02)
        wait = _switched(living, f"mine-{count - 1}", 300)
        growth.measure()
        added, compiled = (len(living.of(kind)) for kind in (events.PresetAdded, events.PresetCompiled))
        wrong = [living.problem(*ANY), _end(living), growth.problem(compiled, 2)]
    wrong.append("never under the last one" * (wait is None))
    under = f"under the last one {wait or 0:.0f} s after"
    seen = f"{added} taken up, {compiled} compiled, {under}, {growth.words}"
    return together(f"{count} presets added", count, *wrong, seen=seen)


def _added(living: Living, text: str, count: int) -> Iterator[commands.AddPreset]:
    """Yields presets to add, as fast as they are read while the queue has room: what comes then is refused."""
    for number in range(count):
        while number - len(living.of(events.PresetAdded)) >= MAX_WAITING and not living.is_over():
            time.sleep(0.1)
        yield commands.AddPreset(f"mine-{number}", text)


def _send_everything(times: int) -> Row:
    """Sends commands of every kind except `Stop` over eight connections in turn."""
    count, chance = 2_000 * times, random.Random(0)
    kinds: list[Callable[[], AnyCommand]] = [
        *(commands.Pause, commands.Resume, commands.StepOnce, commands.SaveCheckpoint),
        lambda: SwitchPreset(chance.choice(PRESETS)),
        lambda: commands.PreparePreset(chance.choice(PRESETS)),
        lambda: commands.InspectPreset(chance.choice(PRESETS)),
        lambda: commands.RestoreCheckpoint(chance.randrange(100)),
        lambda: commands.ProfileSteps(1),
    ]
    with living_engine("floods-everything") as living:
        growth = Growth(living)
        for _ in range(8):
            _send(living, (chance.choice(kinds)() for _ in range(count // 8)))
        if living.is_over():
            return together(f"{count:,} commands of every kind", count, f"it ended: {living.events()[-1]}")
        growth.measure()
        wrong = [_end(living), growth.problem(2 * len(PRESETS), 2)]
    return together(f"{count:,} commands of every kind", count, *wrong, seen=f"{growth.words}; ended in order")


def _send_previews() -> Row:
    count, text = 2_000, preset_text(load_preset("fsdp"))
    with living_engine("floods-questions") as living:
        ask = partial(commands.PreviewPreset, preset="mine", before=text, after=text)
        _send(living, (ask(number=number) for number in range(count)))
        wrong = [living.problem(), _end(living)]
    seen = "steps went on; ended in order"
    return together(f"{count:,} questions of what a preset would cost", count, *wrong, seen=seen)


RAISES = "def raises(_):\n    raise RuntimeError('a callback of the model')\n"
BLOCKED = {
    "a callback that raises": MODEL.format(at_import=RAISES, in_call="jax.debug.callback(raises, tokens[0, 0])"),
    "a loop that never ends at import": MODEL.format(at_import="while True: pass", in_call="pass"),
}
"""tests/training/test_watchdog.py has code that sleeps."""


def _blocked(name: str, text: str, ways: Iterator[str]) -> str:
    """Ends a blocked run by SIGTERM to `train`, or by `stop`."""
    how, folder = next(ways), Path(name).absolute()
    folder.mkdir(exist_ok=True)
    (folder / "lm.py").write_text(text)
    options = ("--batch-size=8", "--seq-len=16", f"--stop-timeout={DEADLINE}", "--checkpoint-every=10")
    with Launched(f"{name}-{how.lower()}", f"--model={folder}/lm.py:lm", *options) as run:
        time.sleep(20)  # until it is blocked, on a busy machine
        began = time.monotonic()
        if how == "SIGTERM":
            run.process.send_signal(signal.SIGTERM)
        else:
            shardtui("stop", run.name)
        run.process.wait(DEADLINE + 30)
        seconds = time.monotonic() - began
        assert seconds < DEADLINE + 30, f"ended after {seconds:.0f} s"
        return f"ended within {seconds:.0f} s"
