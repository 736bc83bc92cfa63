"""More commands and presets than anybody needs, and code that does not return: memory has a bound, steps go on, and an
end is an end."""

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
from pathlib import Path
from typing import get_args

from shardtui.engine.spec.preset_file import preset_text
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire import framing
from shardtui.engine.wire.commands import (
    AddPreset,
    AnyCommand,
    Hello,
    InspectPreset,
    Pause,
    PreparePreset,
    ProfileSteps,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
    WeighPreset,
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

from ..conftest import SHARDTUI
from ..suite import memory
from .living import Living, living_engine
from .row import Row

PRESETS = ("fsdp", "tp", "hsdp", "dp-tp2", "fsdp-tp2", "dp-tp4", "sp2", "fsdp-tp4", "fsdp-tp8", "dp-sp2", "pp2")
APART = 0.4
"""Seconds between two requests of somebody who tries presets."""
PER_PROGRAM = 80e6
"""Bytes that a compiled program of the small model, what was traced for it and its moves may take."""
ALLOWED = 400e6
"""Bytes on top of that."""
STOP_SECONDS = 10.0
"""In which a flooded engine has ended and saved; without a flood it takes a second or two."""
DEADLINE = 5.0
"""Seconds of --stop-timeout for code that does not return."""


def run(times: int) -> Iterator[Row]:
    for flood in (_tried_out, _alternating, _added, partial(_everything, times), _questions):
        yield flood()
    for name, text in BLOCKED.items():
        yield _ended(name, text)


def _send(living: Living, commands: Iterable[AnyCommand], apart: float = 0.0) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(living.directory.socket))
        connection.settimeout(60)
        for command in (Hello(), *commands):
            while select.select([connection], [], [], 0)[0]:
                connection.recv(1 << 20)
            connection.sendall(framing.frame(command))
            time.sleep(apart)
        time.sleep(0.2)


def _wait(living: Living, holds: Callable[[list[AnyEvent]], bool], seconds: float) -> float | None:
    """Seconds until it held; None where it did not."""
    began = time.monotonic()
    while not holds(living.events()):
        if time.monotonic() - began > seconds or living.process.poll() is not None:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


def _switched_to(preset: str) -> Callable[[list[AnyEvent]], bool]:
    return lambda events: any(isinstance(event, Switched) and event.to_preset == preset for event in events)


def _end(living: Living) -> str:
    """Stops it, and says what was wrong with its end."""
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


def _tried_out() -> Row:
    """One request, and then as many as there are presets."""
    with living_engine("floods-presets") as living:
        _send(living, [SwitchPreset("fsdp")])
        alone = _wait(living, _switched_to("fsdp"), 120)
        before = memory("VmRSS", living.process.pid)
        names = [name for name in PRESETS if name not in ("fsdp", "pp2")] + ["pitfall-same-axis", "dp"] * 2
        _send(living, [*map(SwitchPreset, names), SwitchPreset("pp2")], APART)
        wanted = _wait(living, _switched_to("pp2"), 120)
        grown = memory("VmHWM", living.process.pid) - before
        compiled = {event.preset for event in living.events() if isinstance(event, PresetCompiled)}
        wrong = [*filter(None, [living.problem(get_args(AnyEvent)), _end(living)])]
    allowed = len(compiled) * PER_PROGRAM + ALLOWED
    if alone is None or wanted is None:
        wrong.append(f"switched after {alone} s and {wanted} s")
    elif wanted > 3 * alone + 5:
        wrong.append(f"one request took {alone:.1f} s, the last of {len(names) + 1} {wanted:.1f} s")
    if grown > allowed:
        wrong.append(f"{grown / 1e6:.0f} MB more")
    note = f"the last one took {wanted or 0:.1f} s, one alone {alone or 0:.1f} s; {len(compiled)} were compiled"
    return _row(f"{len(names) + 1} presets, one every {APART} s", 1, wrong, f"{note}, {grown / 1e6:.0f} MB more")


def _alternating() -> Row:
    count = 10_000
    with living_engine("floods-alternating") as living:
        before, steps = memory("VmRSS", living.process.pid), len(_steps(living))
        began = time.monotonic()
        _send(living, (SwitchPreset(("tp", "fsdp")[number % 2]) for number in range(count)))
        seconds, made = time.monotonic() - began, len(_steps(living)) - steps
        going_on = living.problem(get_args(AnyEvent))
        grown = memory("VmHWM", living.process.pid) - before
        wrong = [*filter(None, [going_on, _end(living), f"{grown / 1e6:.0f} MB more" * (grown > 3 * ALLOWED)])]
    note = f"in {seconds:.1f} s, {made} reports of steps meanwhile, {grown / 1e6:.0f} MB more"
    return _row(f"{count:,} alternating switches", count, wrong, note)


def _steps(living: Living) -> list[AnyEvent]:
    return [event for event in living.events() if isinstance(event, StepsDone)]


def _added() -> Row:
    count = 300
    text = preset_text(load_preset("fsdp"))
    with living_engine("floods-added") as living:
        before = memory("VmRSS", living.process.pid)
        _send(living, (AddPreset(f"mine-{number}", text) for number in range(count)), 0.02)
        wait = _wait(living, _switched_to(f"mine-{count - 1}"), 300)
        grown = memory("VmHWM", living.process.pid) - before
        added = sum(isinstance(event, PresetAdded) for event in living.events())
        compiled = sum(isinstance(event, PresetCompiled) for event in living.events())
        wrong = [*filter(None, [living.problem(get_args(AnyEvent)), _end(living)])]
    if wait is None:
        wrong.append("never under the last one")
    if grown > compiled * PER_PROGRAM + 2 * ALLOWED:
        wrong.append(f"{grown / 1e6:.0f} MB more")
    note = (
        f"{added} taken up, {compiled} compiled, under the last one {wait or 0:.0f} s after, {grown / 1e6:.0f} MB more"
    )
    return _row(f"{count} presets added", count, wrong, note)


def _everything(times: int) -> Row:
    """Commands of every kind but `Stop`, from eight connections in turn."""
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
        grown = memory("VmHWM", living.process.pid) - before if alive else 0
        wrong = [*filter(None, [_end(living) if alive else f"it ended: {living.events()[-1]}"])]
    if grown > len(PRESETS) * 2 * PER_PROGRAM + 2 * ALLOWED:
        wrong.append(f"{grown / 1e6:.0f} MB more")
    return _row(f"{count:,} commands of every kind", count, wrong, f"{grown / 1e6:.0f} MB more; ended in order")


def _questions() -> Row:
    count, text = 2_000, preset_text(load_preset("fsdp"))
    with living_engine("floods-questions") as living:
        question = (WeighPreset(number=number, preset="mine", before=text, after=text) for number in range(count))
        _send(living, question)
        wrong = [*filter(None, [living.problem(), _end(living)])]
    return _row(f"{count:,} questions of what a preset would cost", count, wrong, "steps went on; ended in order")


MODEL = """
import time
import jax, jax.numpy as jnp
from flax import nnx
{at_import}

def raises(_):
    raise RuntimeError("a callback of the model")

class Lm(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(256, 256, rngs=rngs)

    def __call__(self, tokens):
        out = self.table(tokens)
        {in_call}
        return out

def lm(rngs: nnx.Rngs):
    return Lm(rngs)
"""
OWN = """
def loss(model, batch):
    return model(batch).mean()

def batch(step, batch_size):
    if step == 40:
        time.sleep(1000)
    return jnp.zeros((batch_size, 4), int)
"""
BLOCKED = {
    "a model that sleeps at import": MODEL.format(at_import="time.sleep(1000)", in_call="pass"),
    "a batch that sleeps": MODEL.format(at_import="", in_call="pass") + OWN,
    "a callback that sleeps": MODEL.format(at_import="", in_call="jax.debug.callback(lambda: time.sleep(1000))"),
    "a callback that raises": MODEL.format(at_import="", in_call="jax.debug.callback(raises, out[0, 0, 0])"),
    "a loop that never ends at import": MODEL.format(at_import="while True: pass", in_call="pass"),
}


def _ended(name: str, text: str) -> Row:
    """By SIGTERM to `train`, and by `stop`."""
    wrong: list[str] = []
    slowest, said = 0.0, ""
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
                said = process.communicate(timeout=DEADLINE + 30)[1]
            except subprocess.TimeoutExpired:
                wrong.append(f"{how}: not ended after {time.monotonic() - began:.0f} s")
            slowest = max(slowest, time.monotonic() - began)
    last = next((line for line in said.splitlines() if "lm.py" in line), said.strip().splitlines()[-1] if said else "")
    return _row(name, 2, wrong, f"ended within {slowest:.0f} s: {last.removeprefix('shardtui: ')}")


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
