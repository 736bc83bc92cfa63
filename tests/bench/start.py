"""Time from the command to the first frame, to the first step, and to the first step with a warm compilation cache."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import PresetCompiled

from ..conftest import SHARDTUI
from ..recorded import events_in
from .figure import Figure, at_most, ratios

BARE_APP = """
from textual.app import App
from textual.widgets import Static

class Bare(App):
    def compose(self):
        yield Static("loss")

Bare().run()
"""
BARE, FIRST, WATCH = b"loss", b"loading jax", b"loss"
"""Words in the frames: the bare app's, this app's first one, and that of Watch with all its panels."""
REPEATS = 21
STARTS = 5
SOURCES = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).with_name("shardtui")
"""The command as users start it."""


def run() -> list[Figure]:
    return [*_frames(), *_steps()]


def _frames() -> list[Figure]:
    ours, whole, bare, splash, nothing = [], [], [], [], []
    for number in range(REPEATS):
        byte, first, watch = _seconds([str(SCRIPT), "run", f"--run=frame-{number}"], FIRST, WATCH, f"frame-{number}")
        splash.append(1e3 * byte)
        ours.append(first)
        whole.append(watch)
        bare.append(_seconds([sys.executable, "-c", BARE_APP], BARE)[1])
        nothing.append(1e3 * _seconds([sys.executable, "-c", "print('loss')"], BARE)[1])
    against = f"bare: {1e3 * median(bare):.0f} ms"
    return [
        at_most(1.1, "first frame ÷ that of a bare Textual app", ratios(ours, bare), "×", against),
        at_most(1.1, "frame with all of Watch ÷ the same", ratios(whole, bare), "×", against),
        at_most(50, "splash", splash, "ms", f"python that prints a word: {median(nothing):.0f} ms"),
    ]


def _seconds(command: Sequence[str], word: bytes, last: bytes = b"", engine_of: str = "") -> tuple[float, float, float]:
    """Returns the seconds until the first byte, `word` and `last` are written, on a terminal of 80 × 24."""
    master, end = os.openpty()
    termios.tcsetwinsize(end, (24, 80))
    own = {**os.environ, "TERM": "xterm-256color"}
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is cached, as it is for an installed package
    began, output = time.perf_counter(), b""
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True, env=own)
    os.close(end)
    seconds: dict[bytes, float] = {}
    while len(seconds) < len({b"", word, last}) and select.select([master], [], [], 30)[0]:
        output += os.read(master, 65536)
        for awaited in (b"", word, last):
            if awaited in output:
                seconds.setdefault(awaited, time.perf_counter() - began)
    assert word in output, output
    assert last in output, output
    if engine_of:
        _end_engine(engine_of)
    process.kill()
    process.wait()
    os.close(master)
    return seconds[b""], seconds[word], seconds[last]


def _end_engine(run: str) -> None:
    """Kills the engine, which starts after the first frame and takes a moment to write its process id."""
    while not ((holder := run_directory.find(run).holder()) and holder.is_here):
        time.sleep(0.05)
    os.kill(holder.pid, signal.SIGKILL)


def _steps() -> list[Figure]:
    """Measures first steps with an empty compilation cache, and compile times with a warm one."""
    ours, plain, again = [], [], []
    for number in range(STARTS):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "XDG_CACHE_HOME": cache}
            command = [*SHARDTUI, "train", "--json", "--steps=1", "--checkpoint-minutes=0"]
            ours.append(_until([*command, f"--run=first-{number}"], b"StepDone", environment))
            plain.append(_until([sys.executable, "-m", "tests.bench.plain"], b"1", environment))
            subprocess.run([*command, f"--run=second-{number}"], env=environment, check=True, capture_output=True)
            again.append(_compiled(f"second-{number}") / _compiled(f"first-{number}"))
    name, against = "first step ÷ that of the plain script, nothing compiled before", f"plain: {median(plain):.1f} s"
    return [
        at_most(1.05, name, ratios(ours, plain), "×", against),
        at_most(0.5, "second compilation ÷ first", again, "×", "the first"),
    ]


def _until(command: Sequence[str], word: bytes, environment: dict[str, str]) -> float:
    """Returns the seconds until a line of the output contains the word."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=SOURCES)
    for line in process.stdout:
        if word in line:
            break
    seconds = time.perf_counter() - began
    process.terminate()
    process.wait()
    return seconds


def _compiled(run: str) -> float:
    events = events_in(run_directory.find(run).events)
    return next(event.compile_seconds for event in events if isinstance(event, PresetCompiled))
