"""Ends the UI of a live engine, and runs it in terminals of every size, kind and locale.

tests/tui/test_terminal.py has its other ends, a terminal without colours, and dumb ones."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from shardtui.engine.wire.events import PresetInspected

from ..suite import own_directories
from ..terminal import Terminal, training
from .living import Living, living_engine
from .row import Row, together

KEYS = "123450e?"
"""Keys of all views, the export and the help."""
SIZES = ((1, 1), (2, 1), (10, 3), (40, 10), (80, 24), (140, 40), (500, 200))
KINDS: tuple[tuple[str, dict[str, str]], ...] = (
    *((f"TERM={term}", {"TERM": term}) for term in ("linux", "screen", "tmux-256color", "vt100", "xterm-mono")),
    ("TERM unknown to terminfo", {"TERM": "no-such-terminal"}),
    ("16 colours", {"TERM": "xterm", "TEXTUAL_COLOR_SYSTEM": "standard"}),
    ("24-bit colours", {"COLORTERM": "truecolor"}),
    *((f"LC_ALL={locale}", {"LC_ALL": locale, "LANG": locale}) for locale in ("C", "POSIX", "C.UTF-8", "no_SUCH")),
)
WITHOUT_CHARACTERS = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
STORM = 200
END_SECONDS = 30.0
"""Time for the UI to end; how long it takes is reported but not judged, since machines are shared."""


def run(times: int) -> Iterator[Row]:
    """Ends the UI in two ways, `times` times or more, and visits each terminal once."""
    with own_directories(), living_engine("watched") as engine:
        yield _ended(engine, "SIGTERM while the terminal stands still", [_standing() for _ in range(times)])
        starts = [_starting(number / (5 * times)) for number in range(5 * times)]
        yield _ended(engine, "SIGTERM while the UI starts", starts)
        visits: dict[str, Callable[[], str]] = {
            **{f"{width} × {height}": partial(_visit, (width, height)) for width, height in SIZES},
            f"{STORM} resizes": _storm,
            **{name: partial(_visit, (80, 24), **kind) for name, kind in KINDS},
            "a locale without the characters: refused": partial(_refused, **WITHOUT_CHARACTERS),
            "TERM unset: refused": partial(_refused, without=("TERM",)),
        }
        for name, visit in visits.items():
            yield together(name, 1, visit() or engine.problem(PresetInspected))


def _ended(engine: Living, name: str, ends: list[tuple[float, bool]]) -> Row:
    """`ends`: how long each took, and whether the terminal was left as it should."""
    good = sum(seconds < END_SECONDS and is_restored for seconds, is_restored in ends)
    seen = f"gone in at most {max(seconds for seconds, _ in ends):.2f} s"
    problem = engine.problem()
    return Row(name, len(ends), 0 if problem else good, problem or seen)


def _attached() -> Terminal:
    ui = Terminal("attach", "watched")
    ui.until(training, "training")
    return ui


def _terminated(ui: Terminal, reads: bool = True) -> tuple[float, bool]:
    """Returns the seconds until the process was gone, and whether the terminal was restored."""
    began = time.monotonic()
    ui.process.terminate()
    while ui.process.poll() is None and time.monotonic() < began + END_SECONDS:
        if reads:
            ui.read(0.005, draw=False)
        else:
            time.sleep(0.005)
    seconds = time.monotonic() - began
    if ui.process.poll() is None:
        ui.process.kill()
    while ui.read(draw=False):
        pass
    restored = ui.is_restored()
    ui.hang_up()
    return seconds, restored


def _standing() -> tuple[float, bool]:
    """Sends SIGTERM while nobody reads the terminal, whose buffer is full: it cannot be restored."""
    ui = _attached()
    for width in range(100):
        ui.resize(300 - width % 2, 100)
        time.sleep(0.02)
    return _terminated(ui, reads=False)[0], True


def _starting(seconds: float) -> tuple[float, bool]:
    """Sends SIGTERM while the UI starts: it must end, and restore a terminal that it had changed."""
    ui = Terminal("attach", "watched")
    read_for(ui, seconds)
    seconds, is_restored = _terminated(ui)
    return seconds, is_restored or b"\x1b[?1049h" not in ui.output


def _visit(size: tuple[int, int], **environment: str) -> str:
    """Visits all views and returns what went wrong; empty if nothing."""
    ui = Terminal("attach", "watched", size=size, **environment)
    if size >= (40, 10):
        ui.until(lambda text: "step " in text, "training")
    for key in KEYS:
        read_for(ui, 0.1)
        ui.send(key)
    read_for(ui, 0.3)
    return _detach(ui)


def _storm() -> str:
    ui = _attached()
    for number in range(STORM):
        width, height = ((1, 1), (500, 200), (80, 24), (3, 90), (200, 2))[number % 5]
        ui.resize(width, height)
        if number % 20 == 0:
            ui.send(KEYS[number // 20 % 6])
        ui.read(0.01, draw=False)
    ui.resize(80, 24)
    ui.send("1")
    ui.until(training, "the view after the storm")
    return _detach(ui)


def _detach(ui: Terminal) -> str:
    """Detaches the UI with its key and returns what went wrong; empty if nothing."""
    if ui.process.poll() is not None:
        return f"it ended: {ui.output[-200:]!r}"
    ui.send("d")
    code = ui.exit_code(draw=False)
    if code or b"Traceback" in ui.output:
        return f"exit code {code}: {ui.output[-200:]!r}"
    return "" if ui.is_restored() else "the terminal is not restored"


def _refused(**environment: object) -> str:
    ui = Terminal("attach", "watched", **environment)  # type: ignore[arg-type]
    code = ui.exit_code()
    return "" if code == 2 and b"shardtui: the UI " in ui.output else f"exit code {code}: {ui.output[-200:]!r}"


def read_for(ui: Terminal, seconds: float, quiet: float = math.inf) -> None:
    """Reads for `seconds`, or until nothing was written for `quiet` seconds; once at least."""
    end, last, size = time.monotonic() + seconds, time.monotonic(), len(ui.output)
    while ui.read(0.02, draw=False) and time.monotonic() < min(end, last + quiet):
        if len(ui.output) > size:
            size, last = len(ui.output), time.monotonic()
