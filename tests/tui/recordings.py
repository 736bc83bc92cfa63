"""What real engines answered, for tests of the views: `python -m tests.tui.recordings` records it anew.

Without what differs between machines and moments: folders, versions, and how long a compilation took.
"""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import Inspection
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import TINY, tiny_config
from ..recorded import events_in

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
EVENTS = RECORDED / "events.jsonl"
"""nano on eight simulated devices: 120 steps, switched from `dp` to `fsdp` and `dp-tp2`."""
INSPECTIONS = RECORDED / "inspections.jsonl"
"""The model of `TINY` on eight simulated devices under each of `PRESETS`."""
PRESETS = ("dp", "pitfall-first-dim", "fsdp-tp2")


def recorded() -> RunDirectory:
    directory = run_directory.create(events_in(EVENTS)[0].config)
    directory.events.write_bytes(EVENTS.read_bytes())
    return directory


def described(*presets: str) -> list[Inspection]:
    found = {each.compiled.preset: each for each in decoded(INSPECTIONS.read_bytes())}
    return [found[name] for name in presets]


def inspections(settings: tuple[str, ...], devices: int, *presets: str) -> list[Inspection]:
    """Inspects presets in an engine process, as `shardtui inspect` does."""
    model = load_model("nano", settings)
    config = tiny_config(model=model.model, training=model.training, preset=presets[0], devices=devices)
    command = [sys.executable, "-m", "shardtui.engine", "inspect", encode_json(config).decode(), *presets[1:]]
    return decoded(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def anew() -> bytes:
    lines = b""
    for each in inspections(TINY, 8, *PRESETS):
        compiled = replace(each.compiled, compile_seconds=1.0, from_cache=False)
        lines += encode_json(replace(each, versions={}, compiled=compiled)) + b"\n"
    text = lines.decode().replace(str(ROOT), "/home/me/shardtui")
    return re.sub(r'[^" ]*/site-packages/', "/home/me/site-packages/", text).encode()


def decoded(lines: bytes) -> list[Inspection]:
    return [msgspec.json.decode(line, type=Inspection) for line in lines.splitlines()]


if __name__ == "__main__":
    INSPECTIONS.write_bytes(anew())
