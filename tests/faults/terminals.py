"""Kills the UI of a live engine, and runs it in terminals of every size, kind and locale."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardtui.engine.wire.events import PresetInspected

from ..suite import own_directories
from ..terminal import ON_ITS_TERMINAL, WITHOUT_HANG_UP, Terminal, training
from .living import Living, living_engine
from .row import Row

KEYS = "123450e?"
"""Keys of all views, the export and the help."""
SIZES = ((1, 1), (2, 1), (10, 3), (40, 10), (80, 24), (140, 40), (500, 200))
KINDS: tuple[tuple[str, dict[str, str]], ...] = (
    *((f"TERM={term}", {"TERM": term}) for term in ("linux", "screen", "tmux-256color", "vt100", "xterm-mono")),
    ("TERM unknown to terminfo", {"TERM": "no-such-terminal"}),
    ("NO_COLOR=1", {"NO_COLOR": "1"}),
    ("16 colours", {"TERM": "xterm", "TEXTUAL_COLOR_SYSTEM": "standard"}),
    ("24-bit colours", {"COLORTERM": "truecolor"}),
    *((f"LC_ALL={locale}", {"LC_ALL": locale, "LANG": locale}) for locale in ("C", "POSIX", "C.UTF-8", "no_SUCH")),
)
REFUSED: tuple[tuple[str, dict[str, str]], ...] = (
    ("TERM=dumb", {"TERM": "dumb"}),
    ("TERM empty", {"TERM": ""}),
    ("a locale without the characters", {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}),
)
STORM = 200
END_SECONDS = 30.0
"""Time for the UI to end; how long it takes is reported but not judged, since machines are shared."""


@dataclass(frozen=True)
class Death:
    """How a UI ended."""

    seconds: float
    """Time until the process was gone."""
    is_restored: bool
    """Whether the terminal was restored."""


def run(times: int) -> list[Row]:
    """Ends the UI `times` times in each way, and visits each terminal once."""
    with own_directories(), living_engine("watched") as engine:
        return [
            *_deaths(engine, times),
            *(
                _row(engine, f"{width} × {height}", lambda size=(width, height): _visit(size))
                for width, height in SIZES
            ),
            _row(engine, f"{STORM} resizes", _storm),
            *(_row(engine, name, lambda kind=kind: _visit((80, 24), **kind)) for name, kind in KINDS),
            *(_row(engine, f"{name}: refused", lambda kind=kind: _refused(**kind)) for name, kind in REFUSED),
            _row(engine, "TERM unset: refused", lambda: _refused(without=("TERM",))),
        ]


def _deaths(engine: Living, times: int) -> Iterator[Row]:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
        yield _dying(engine, f"UI gets {number.name}", times, lambda ui, number=number: ui.process.send_signal(number))
    yield _dying(engine, "terminal closed", times, Terminal.hang_up)
    yield _dying(engine, "terminal closed, SIGHUP ignored", times, Terminal.hang_up, WITHOUT_HANG_UP)
    yield _dying(
        engine, "SIGTERM while the terminal stands still", times, lambda ui: ui.process.terminate(), stalls=True
    )
    yield _starting(engine, 5 * times)


def _dying(
    engine: Living,
    name: str,
    times: int,
    kill: Callable[[Terminal], None],
    start: str = ON_ITS_TERMINAL,
    stalls: bool = False,
) -> Row:
    deaths: list[Death] = []
    for _ in range(times):
        ui = _attached(start)
        if stalls:
            _fill(ui)
        deaths.append(_death(ui, kill, reads=not stalls and kill is not Terminal.hang_up))
    problem = engine.problem()
    has_terminal = kill is not Terminal.hang_up and "SIGKILL" not in name and not stalls
    good = sum(death.seconds < END_SECONDS and (death.is_restored or not has_terminal) for death in deaths)
    note = f"gone in at most {max(death.seconds for death in deaths):.2f} s"
    return Row(name, times, 0 if problem else good, problem or note)


def _attached(start: str = ON_ITS_TERMINAL) -> Terminal:
    ui = Terminal("attach", "watched", start=start)
    ui.until(training, "training")
    return ui


def _death(ui: Terminal, kill: Callable[[Terminal], None], reads: bool = True) -> Death:
    began = time.monotonic()
    kill(ui)
    while ui.process.poll() is None and time.monotonic() < began + END_SECONDS:
        if reads:
            ui.read(0.005, draw=False)
        else:
            time.sleep(0.005)
    seconds = time.monotonic() - began
    if ui.process.poll() is None:
        ui.process.kill()
    if kill is Terminal.hang_up:
        return Death(seconds, False)
    while ui.read(draw=False):
        pass
    restored = ui.is_restored()
    ui.hang_up()
    return Death(seconds, restored)


def _fill(ui: Terminal) -> None:
    """Fills the buffer of the UI's terminal."""
    for width in range(100):
        ui.resize(300 - width % 2, 100)
        time.sleep(0.02)


def _starting(engine: Living, times: int) -> Row:
    """Sends SIGTERM while the UI starts: it must end, and restore a terminal that it had changed."""
    good, most = 0, 0.0
    for number in range(times):
        ui = Terminal("attach", "watched")
        end = time.monotonic() + number / times
        while time.monotonic() < end:
            ui.read(0.01, draw=False)
        death = _death(ui, lambda ui: ui.process.terminate())
        most = max(most, death.seconds)
        good += death.seconds < END_SECONDS and (death.is_restored or b"\x1b[?1049h" not in ui.output)
    problem = engine.problem()
    return Row("SIGTERM while the UI starts", times, 0 if problem else good, problem or f"gone in at most {most:.2f} s")


def _row(engine: Living, name: str, visit: Callable[[], str]) -> Row:
    problem = visit() or engine.problem((PresetInspected,))
    return Row(name, 1, 0 if problem else 1, problem)


def _visit(size: tuple[int, int], **environment: str) -> str:
    """Visits all views and returns what went wrong; empty if nothing."""
    ui = Terminal("attach", "watched", size=size, **environment)
    if size >= (40, 10):
        ui.until(lambda text: "step " in text, "training")
    for key in KEYS:
        _read_for(ui, 0.1)
        ui.send(key)
    _read_for(ui, 0.3)
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


def _read_for(ui: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and ui.read(0.02, draw=False):
        pass
