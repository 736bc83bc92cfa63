"""Floods of commands and presets, and code that does not return: memory stays bounded, steps continue, and a stop
ends the run."""

import os
import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import get_args

from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.wire import framing
from shardtui.engine.wire.commands import (
    AddPreset,
    AnyCommand,
    Hello,
    InspectPreset,
    Pause,
    PreparePreset,
    PreviewPreset,
    ProfileSteps,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from shardtui.engine.wire.events import (
    AnyEvent,
    CheckpointSaved,
    EngineStopped,
    PresetAdded,
    PresetCompiled,
    StepsDone,
    Switched,
)
from shardtui.engine.wire.inbox import MAX_WAITING

from ..conftest import SHARDTUI
from ..processes import awaited
from ..suite import memory
from ..training.test_watchdog import MODEL, SLEEPING_BATCH
from .living import Living, living_engine
from .row import Row

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


def run(times: int) -> Iterator[Row]:
    """Runs each flood once; `times` scales the commands of every kind."""
    for flood in (_try_presets, _alternate, _add_presets, partial(_send_everything, times), _send_previews):
        yield flood()
    for name, text in BLOCKED.items():
        yield _blocked(name, text)


def _send(living: Living, commands: Iterable[AnyCommand], interval: float = 0.0) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(living.directory.socket))
        connection.settimeout(60)
        for command in chain([Hello()], commands):
            while select.select([connection], [], [], 0)[0]:
                connection.recv(1 << 20)
            connection.sendall(framing.frame(command))
            time.sleep(interval)
        time.sleep(0.2)


def _wait(living: Living, holds: Callable[[list[AnyEvent]], bool], seconds: float) -> float | None:
    """Returns the seconds until the condition held; None if it did not."""
    began = time.monotonic()
    with suppress(TimeoutError):
        awaited(lambda: holds(living.events()), seconds=seconds, is_over=lambda: living.process.poll() is not None)
        return time.monotonic() - began
    return None


def _switched_to(preset: str) -> Callable[[list[AnyEvent]], bool]:
    return lambda events: any(isinstance(event, Switched) and event.to_preset == preset for event in events)


def _end(living: Living) -> str:
    """Stops the engine and returns what was wrong with its end; empty if nothing."""
    began = time.monotonic()
    _send(living, [Stop()])
    with suppress(subprocess.TimeoutExpired):
        living.process.wait(STOP_SECONDS)
    events = living.events()
    if living.process.poll() is None or not isinstance(events[-1], EngineStopped):
        return f"not ended {time.monotonic() - began:.0f} s after `stop`"
    saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
    done = events[-1].step
    return "" if saved[-1:] == [done] else f"step {done} was done, saved are {saved[-3:]}"


def _try_presets() -> Row:
    """Requests one switch, then one for every preset."""
    with living_engine("floods-presets") as living:
        _send(living, [SwitchPreset("fsdp")])
        alone = _wait(living, _switched_to("fsdp"), 120)
        before = memory("VmRSS", living.process.pid)
        names = [name for name in PRESETS if name not in ("fsdp", "pp2")] + ["pitfall-same-axis", "dp"] * 2
        _send(living, [*map(SwitchPreset, names), SwitchPreset("pp2")], INTERVAL_SECONDS)
        wanted = _wait(living, _switched_to("pp2"), 120)
        growth = memory("VmHWM", living.process.pid) - before
        compiled = {event.preset for event in living.events() if isinstance(event, PresetCompiled)}
        wrong = [*filter(None, [living.problem(get_args(AnyEvent)), _end(living)])]
    allowed = len(compiled) * BYTES_PER_PROGRAM + EXTRA_BYTES
    if alone is None or wanted is None:
        wrong.append(f"switched after {alone} s and {wanted} s")
    elif wanted > 3 * alone + 5:
        wrong.append(f"one request took {alone:.1f} s, the last of {len(names) + 1} {wanted:.1f} s")
    if growth > allowed:
        wrong.append(f"{growth / 1e6:.0f} MB more")
    note = f"the last one took {wanted or 0:.1f} s, one alone {alone or 0:.1f} s; {len(compiled)} were compiled"
    return _row(
        f"{len(names) + 1} presets, one every {INTERVAL_SECONDS} s", 1, wrong, f"{note}, {growth / 1e6:.0f} MB more"
    )


def _alternate() -> Row:
    count = 10_000
    with living_engine("floods-alternating") as living:
        before, steps = memory("VmRSS", living.process.pid), len(_steps(living))
        began = time.monotonic()
        _send(living, (SwitchPreset(("tp", "fsdp")[number % 2]) for number in range(count)))
        seconds, made = time.monotonic() - began, len(_steps(living)) - steps
        problem = living.problem(get_args(AnyEvent))
        growth = memory("VmHWM", living.process.pid) - before
        wrong = [*filter(None, [problem, _end(living), f"{growth / 1e6:.0f} MB more" * (growth > 3 * EXTRA_BYTES)])]
    note = f"in {seconds:.1f} s, {made} reports of steps meanwhile, {growth / 1e6:.0f} MB more"
    return _row(f"{count:,} alternating switches", count, wrong, note)


def _steps(living: Living) -> list[AnyEvent]:
    return [event for event in living.events() if isinstance(event, StepsDone)]


def _add_presets() -> Row:
    count = 300
    text = preset_text(load_preset("fsdp"))
    with living_engine("floods-added") as living:
        before = memory("VmRSS", living.process.pid)
        _send(living, _added(living, text, count), 0.02)
        wait = _wait(living, _switched_to(f"mine-{count - 1}"), 300)
        growth = memory("VmHWM", living.process.pid) - before
        added = _count(living, PresetAdded)
        compiled = _count(living, PresetCompiled)
        wrong = [*filter(None, [living.problem(get_args(AnyEvent)), _end(living)])]
    if wait is None:
        wrong.append("never under the last one")
    if growth > compiled * BYTES_PER_PROGRAM + 2 * EXTRA_BYTES:
        wrong.append(f"{growth / 1e6:.0f} MB more")
    note = (
        f"{added} taken up, {compiled} compiled, under the last one {wait or 0:.0f} s after, {growth / 1e6:.0f} MB more"
    )
    return _row(f"{count} presets added", count, wrong, note)


def _added(living: Living, text: str, count: int) -> Iterator[AddPreset]:
    """Yields presets to add, as fast as they are read while the queue has room: what comes then is refused."""
    for number in range(count):
        while number - _count(living, PresetAdded) >= MAX_WAITING and living.process.poll() is None:
            time.sleep(0.1)
        yield AddPreset(f"mine-{number}", text)


def _count(living: Living, kind: type[AnyEvent]) -> int:
    """Returns the number of events of a kind."""
    return sum(isinstance(event, kind) for event in living.events())


def _send_everything(times: int) -> Row:
    """Sends commands of every kind except `Stop` over eight connections in turn."""
    count, chance = 2_000 * times, random.Random(0)
    kinds: list[Callable[[], AnyCommand]] = [
        Pause,
        Resume,
        StepOnce,
        SaveCheckpoint,
        lambda: SwitchPreset(chance.choice(PRESETS)),
        lambda: PreparePreset(chance.choice(PRESETS)),
        lambda: InspectPreset(chance.choice(PRESETS)),
        lambda: RestoreCheckpoint(chance.randrange(100)),
        lambda: ProfileSteps(1),
    ]
    with living_engine("floods-everything") as living:
        before = memory("VmRSS", living.process.pid)
        for _ in range(8):
            _send(living, (chance.choice(kinds)() for _ in range(count // 8)))
        alive = living.process.poll() is None
        growth = memory("VmHWM", living.process.pid) - before if alive else 0
        wrong = [*filter(None, [_end(living) if alive else f"it ended: {living.events()[-1]}"])]
    if growth > len(PRESETS) * 2 * BYTES_PER_PROGRAM + 2 * EXTRA_BYTES:
        wrong.append(f"{growth / 1e6:.0f} MB more")
    return _row(f"{count:,} commands of every kind", count, wrong, f"{growth / 1e6:.0f} MB more; ended in order")


def _send_previews() -> Row:
    count, text = 2_000, preset_text(load_preset("fsdp"))
    with living_engine("floods-questions") as living:
        question = (PreviewPreset(number=number, preset="mine", before=text, after=text) for number in range(count))
        _send(living, question)
        wrong = [*filter(None, [living.problem(), _end(living)])]
    return _row(f"{count:,} questions of what a preset would cost", count, wrong, "steps went on; ended in order")


RAISES = "def raises(_):\n    raise RuntimeError('a callback of the model')\n"
BLOCKED = {
    "a model that sleeps at import": MODEL.format(at_import="time.sleep(1000)", in_call="pass"),
    "a batch that sleeps": MODEL.format(at_import="", in_call="pass") + SLEEPING_BATCH,
    "a callback that sleeps": MODEL.format(at_import="", in_call="jax.debug.callback(lambda: time.sleep(1000))"),
    "a callback that raises": MODEL.format(at_import=RAISES, in_call="jax.debug.callback(raises, tokens[0, 0])"),
    "a loop that never ends at import": MODEL.format(at_import="while True: pass", in_call="pass"),
}


def _blocked(name: str, text: str) -> Row:
    """Ends a blocked run by SIGTERM to `train`, and by `stop`."""
    wrong: list[str] = []
    slowest = 0.0
    folder = Path(os.environ["XDG_STATE_HOME"]).parent / name.replace(" ", "-")
    folder.mkdir()
    (folder / "lm.py").write_text(text)
    for how in ("SIGTERM", "stop"):
        with _training(folder, how) as (process, run_name):
            time.sleep(20)  # until it is blocked, on a busy machine
            began = time.monotonic()
            if how == "SIGTERM":
                process.send_signal(signal.SIGTERM)
            else:
                subprocess.run([*SHARDTUI, "stop", run_name], capture_output=True, timeout=120, check=False)
            try:
                process.communicate(timeout=DEADLINE + 30)
            except subprocess.TimeoutExpired:
                wrong.append(f"{how}: not ended after {time.monotonic() - began:.0f} s")
            slowest = max(slowest, time.monotonic() - began)
    return _row(name, 2, wrong, f"ended within {slowest:.0f} s")


@contextmanager
def _training(folder: Path, how: str):  # type: ignore[no-untyped-def]
    name = f"{folder.name}-{how.lower()}"
    command = [*SHARDTUI, "train", "--json", "--steps=1000000", f"--run={name}", f"--model={folder}/lm.py:lm"]
    options = ["--batch-size=8", "--seq-len=16", f"--stop-timeout={DEADLINE}", "--checkpoint-every=10"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process, name
    finally:
        process.kill()
        process.wait()


def _row(injected: str, times: int, wrong: list[str], note: str) -> Row:
    return Row(injected, times, times if not wrong else 0, "; ".join(wrong) or note)
