"""Random keys, clicks and resizes on a UI with a living engine."""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import EngineStarted, Failed, Switched
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import SETTINGS
from ..recorded import events_in
from ..suite import own_directories
from ..terminal import Terminal
from .row import Row, together
from .terminals import read_for

SECONDS = 60.0
"""Of keys in the short form, shared by the sizes."""
SIZES = ((40, 10), (60, 20), (80, 24), (140, 40))
VISIT_SECONDS = 30.0
"""From one start of the UI to leaving it, at most."""
LEAVING_SECONDS = 300.0
"""It takes up every key that was sent before, and on a busy machine it has little of a core."""
UP, DOWN, RIGHT, LEFT = (f"\x1b[{letter}" for letter in "ABCD")
PAGE_UP, PAGE_DOWN, HOME, END, DELETE = "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F", "\x1b[3~"
TAB, BACK_TAB, ENTER, ESCAPE, BACKSPACE, PALETTE, SAVE = "\t", "\x1b[Z", "\r", "\x1b", "\x7f", "\x10", "\x13"
PASTED = "\x1b[201~"
"""Ends a paste, which a random sequence may begin."""
XON = "\x11"
"""To the UI a key to leave it. To a terminal that was given back it ends the XOFF that `SAVE` is there."""
MOVES = (UP, DOWN, LEFT, RIGHT, PAGE_UP, PAGE_DOWN, HOME, END, TAB, BACK_TAB, ENTER, ESCAPE)
DOCUMENTED = (*"123456780 scwpre?loft/fzrc,.m+-ua7kKgbnvhSOY", *MOVES, BACKSPACE, DELETE, PALETTE, SAVE)
"""Keys that a view, a list or the help names. Those that end the run or the UI come in phrases of their own."""
WORDS = ("", "n5", "switch to ", "pause", "theme", "keys", "export", "prof", "compare", "rules", "maxi", "quit", "zzz")
TYPED = ("v5e:2x4", "v5p:4x4x4", "v9:1", "", "8", "0", "-1", "data, model", "x" * 70, "[/]", "ü")


@dataclass
class Story:
    """What was done to one run, and what was wrong."""

    chance: random.Random
    pressed: int = 0
    keys: list[str] = field(default_factory=list[str])
    """Those of the visit that goes on."""
    problems: list[str] = field(default_factory=list[str])


def run(times: int) -> Iterator[Row]:
    for number, size in enumerate(SIZES):
        with own_directories() as folder:
            os.environ |= {"HOME": str(folder), "PYTHONFAULTHANDLER": "1"}  # Textual puts pictures there
            yield _random(size, number, SECONDS * times / len(SIZES))


def _random(size: tuple[int, int], seed: int, seconds: float) -> Row:
    story = Story(random.Random(seed))
    until = time.monotonic() + seconds
    arguments: tuple[str, ...] = ("run", "--run=keys", *SETTINGS)
    try:
        while time.monotonic() < until and not story.problems:
            _visit(story, Terminal(*arguments, size=size), min(until, time.monotonic() + VISIT_SECONDS))
            arguments = ("attach", "keys")
    finally:
        directory = run_directory.find("keys")
        _end(directory)
    story.problems += _problems(directory)
    events = events_in(directory.events)
    switches, engines = (sum(isinstance(event, kind) for event in events) for kind in (Switched, EngineStarted))
    name = f"random keys and clicks from {size[0]} × {size[1]} on, seed {seed}"
    return together(name, story.pressed, *story.problems[:3], seen=f"{engines} engines, {switches} switches")


def _visit(story: Story, ui: Terminal, until: float) -> None:
    """Bursts of keys, as fast as a terminal sends them or as slow as a user; then it is left."""
    story.keys = []
    ui.until(lambda text: re.search(r"● training|‖ paused|■ stopped|✗ crashed|◌|too small", text), "the UI")
    while time.monotonic() < until and ui.process.poll() is None:
        for _ in range(story.chance.choice((1, 1, 2, 6, 20))):
            phrase = _phrase(story)
            story.keys.append(phrase)
            story.pressed += 1
            try:
                ui.send(phrase)
            except OSError:
                break
        if story.chance.random() < 0.1:
            ui.resize(*story.chance.choice((*SIZES, (1, 1), (200, 60))))
        read_for(ui, story.chance.choice((0.0, 0.05, 0.2, 1.0)))
    _leave(story, ui)


def _phrase(story: Story) -> str:
    """A documented key, or several that go together."""
    chance = story.chance
    one = chance.choice
    several: Callable[..., str] = lambda *keys, k: "".join(chance.choices(keys, k=k))  # noqa: E731
    kinds: dict[str, Callable[[], str]] = {
        "key": lambda: one(DOCUMENTED),
        "palette": lambda: PALETTE + one(WORDS) + several(DOWN, PAGE_UP, PAGE_DOWN, ESCAPE, ENTER, k=3),
        "dialog": lambda: one("xrc") + one(("n", ESCAPE, TAB, DOWN, "z")),
        "restart": lambda: "r" + "y" * (chance.random() < 0.5) + one(("", "", "d", "k")),
        "end": lambda: one(("xy", "d", "q")) if chance.random() < 0.3 else "x",
        "preset": lambda: "1" + one((UP, DOWN)) * chance.randrange(9) + ENTER,
        "checkpoint": lambda: "wc" + DOWN + one((ENTER, ESCAPE)),
        "plan": lambda: "7t" + BACKSPACE * 9 + one(TYPED) + one((ENTER, ESCAPE, TAB)) if chance.random() < 0.2 else "7",
        "edit of rules": lambda: "8" + several(DOWN, RIGHT, LEFT, ENTER + one(TYPED) + ENTER, *"+-a", SAVE, k=6),
        "filter": lambda: "2/" + one(TYPED) + one((ENTER, ESCAPE)),
        "click": lambda: _click(chance),
        "sequence": lambda: ESCAPE + one("[[[O]P?") + several(*"0123456789;:?<$ut~MR", k=9) + PASTED,
    }
    kind = chance.choices(list(kinds), weights=(40, 8, 4, 1, 1, 6, 3, 3, 6, 3, 12, 8))[0]
    return kinds[kind]()


def _click(chance: random.Random) -> str:
    at = f"{chance.randrange(1, 141)};{chance.randrange(1, 41)}"
    if chance.random() < 0.3:
        return f"\x1b[<{chance.choice((64, 65))};{at}M"  # the wheel
    return f"\x1b[<0;{at}M\x1b[<0;{at}m" * chance.choice((1, 1, 2))


def _leave(story: Story, ui: Terminal) -> None:
    """Out of whatever dialog it is in, unless a key has ended it already. It answers, gives the terminal back and says
    what has become of the run."""
    end = time.monotonic() + LEAVING_SECONDS
    while ui.process.poll() is None and time.monotonic() < end:
        for keys in (ESCAPE, ESCAPE, "1d", XON):
            read_for(ui, 0.3)
            if ui.process.poll() is None:
                ui.send(keys)
        read_for(ui, 1.0)
    if ui.process.poll() is None:
        ui.process.send_signal(signal.SIGABRT)  # its thread's frames go to the terminal
        story.problems.append(f"it does not end; the last keys: {story.keys[-20:]!r}")
    while ui.read(0.1, draw=False):
        pass
    code = ui.process.wait(timeout=10)
    said = ui.output.rpartition(b"\x1b[?1049l")[2]
    if b"Traceback" in ui.output or code not in (0, 1) or b"run keys" not in said:
        print(f"{_plain(ui.output[-20_000:])}\nall keys of the visit: {story.keys!r}", file=sys.stderr, flush=True)
        story.problems.append(f"exit code {code}: {_plain(said[-300:])!r}; the last keys: {story.keys[-20:]!r}")
    elif not ui.is_restored():
        story.problems.append("the terminal is not restored")
    os.close(ui.master)


def _plain(output: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode(errors="replace"))


def _problems(directory: RunDirectory) -> list[str]:
    """Of the engines of a run. On a busy machine one that is stopped in its first compilation does not end in time, and
    is ended: nothing is lost."""
    failed = [event for event in events_in(directory.events) if isinstance(event, Failed)]
    lost = [event for event in failed if not any("no step had been trained" in problem for problem in event.problems)]
    log = directory.log.read_text(errors="replace")
    problems = [f"an engine failed: {event.problems}" for event in lost]
    return problems + [f"a traceback in engine.log: {log[-2000:]}"] * ("Traceback" in log)


def _end(directory: RunDirectory) -> None:
    end = time.monotonic() + 60
    while (holder := directory.holder()) and holder.is_here:
        os.kill(holder.pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(0.5)
