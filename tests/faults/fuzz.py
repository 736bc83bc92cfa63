"""Fuzzes frames, and preset files that are placed; `readers` has all files."""

import random
import resource
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import jax
import msgspec
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire import framing
from shardtui.engine.wire.commands import AnyCommand, Hello, InspectPreset, Pause, Resume, StepOnce, Stop, SwitchPreset
from shardtui.engine.wire.server import MAX_VIEWERS

from ..conftest import tiny_config
from ..suite import own_directories
from .living import Living, living_engine
from .row import Row

COMMANDS: tuple[AnyCommand, ...] = (SwitchPreset("fsdp"), InspectPreset("tp"), Pause(), Resume(), StepOnce(), Stop())
NAMES = (
    *("../dp", "/etc/passwd", "dp/../../x.toml", "", "a" * 65, "x\0", "dp\n", "$(id)", "\x1b[31m", "~/x.toml", "ｄｐ"),
)
WRONG = (
    *({"type": kind, "preset": name} for kind in ("SwitchPreset", "InspectPreset") for name in NAMES),
    *({"type": "SwitchPreset", "preset": value} for value in (None, 1, -(2**63), 2**64 - 1, 1.5, True, [], {}, b"dp")),
    *({"type": kind} for kind in ("SwitchPreset", "stop", "Stop ", "", "Event", "EngineStopped", 1, None)),
    *(None, True, 0, 2**64 - 1, 1e308, "Stop", b"Stop", [], {}, ["Stop"], [{"type": "Stop"}], {"Stop": 1}, {1: 2}),
    {"type": "SwitchPreset", "preset": "x" * 60_000},
    {"type": "SwitchPreset"} | {str(n): n for n in range(3000)},
)
DEEP = (b"\x91" * 60_000, b"\x81\xa1a" * 20_000, b"\xdc\xff\xff" * 20_000, b"\xdd\xff\xff\xff\xff" * 10_000)
VALUES = (
    *(
        "0",
        "-1",
        "-7",
        "1_000",
        "9" * 30,
        "9" * 5000,
        "0x" + "f" * 400,
        "inf",
        "nan",
        "1e400",
        "true",
        '""',
        "[]",
        "{}",
    ),
    *('"data"', "'x'", "1979-05-27", "[[]]", '[["data"], []]', "[" * 2000, "{a = {a = {}}}", '"\\u202e"', '"[/]"'),
)
NASTY = (
    "[mesh]\n" + "".join(f"a{n} = 1\n" for n in range(100)) + "b = -1\n",
    "[mesh]\ndata = -1\n[rules]\nbatch = [" + '"data",' * 1000 + "]\n",
    '[mesh]\ndata = -1\n[overrides]\n"[" = []\n"*" = [' + "[]," * 200 + "]\n",
    '[mesh]\ndata = -1\n[overrides]\n"*" = { spec = ["data"], min_size = ' + "9" * 40 + " }\n",
    '[mesh]\ndata = -1\n[overrides]\n"' + "*a" * 40 + '" = ["data"]\n',
    "[mesh]\ndata = 9223372036854775807\nmodel = 9223372036854775807\n",
    "[mesh]\ndata = -1\nmodel = 0x" + "f" * 4000 + "\n",
    "[mesh]\ndata = -1\n" + "[rules.a" + ".a" * 3000 + "]\n",
    "x = " + "[" * 100_000,
    "[mesh]\n" + "\n".join(f'"{chr(code)}" = 2' for code in (0x202E, 0x1F4A9, 0x200B)),
    "#" * (2**20 + 1),
    "\ufeff[mesh]\ndata = -1\n",
)
"""Invalid presets that mutation does not produce."""


def run(times: int) -> list[Row]:
    """Injects `times` as many inputs as the short form."""
    chance = random.Random(times)
    with own_directories(), living_engine("fuzzed") as engine:
        rows = [*_frames(engine, chance, times), *_connections(engine, times)]
    with own_directories():
        return [*rows, _presets(chance, 1000 * times)]


def _frames(engine: Living, chance: random.Random, times: int) -> Iterator[Row]:
    kinds: tuple[tuple[str, int, Callable[[random.Random], bytes]], ...] = (
        ("frames of random bytes", 3000, lambda chance: framed(_not_a_command(chance.randbytes, chance))),
        ("commands with bytes changed", 4000, lambda chance: framed(_not_a_command(_mutated_command, chance))),
        ("frames of another length than told", 1000, _wrong_length),
        ("frames told to be 64 KiB to 4 GiB long", 1000, _oversized),
        ("streams of random bytes", 500, lambda chance: chance.randbytes(chance.randrange(2000))),
        ("values of other types, bad names, huge numbers", 800, _wrong_value),
        ("nesting up to 60,000 deep", 200, lambda chance: framed(chance.choice(DEEP))),
    )
    with _half_frames(engine, 40) as held:
        for name, count, make in kinds:
            yield _inject(engine, name, count * times, lambda make=make: _send(engine, make(chance)))
        problem = engine.problem()
        yield Row("viewers that hold half a frame all the while", held, 0 if problem else held, problem)


def _inject(engine: Living, name: str, times: int, inject: Callable[[], bool]) -> Row:
    answered = sum(inject() for _ in range(times))
    problem = engine.problem()
    return Row(name, times, 0 if problem else answered, problem)


def _send(engine: Living, data: bytes) -> bool:
    """Sends bytes and returns True once the engine ends the connection, as it does after an unreadable frame."""
    with _connected(engine, greets=len(data) % 2 == 0) as viewer, suppress(ConnectionError):
        viewer.sendall(data)
        viewer.shutdown(socket.SHUT_WR)
        while viewer.recv(65536):
            pass
    return True


@contextmanager
def _half_frames(engine: Living, count: int) -> Iterator[int]:
    with ExitStack() as held:
        for _ in range(count):
            held.enter_context(_connected(engine)).sendall(struct.pack(">I", 1000) + b"\x81")
        yield count


def _connections(engine: Living, times: int) -> Iterator[Row]:
    """Opens many idle connections at once; then a viewer that reads must still be served."""
    count = min(2000 * times, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    with ExitStack() as held:
        for _ in range(count):
            held.enter_context(_connected(engine))
        last = _first_events(engine)
        problem = engine.problem() or ("" if "StepsDone" in last else f"the last was told {last!r}")
    problem = problem or ("" if "StepsDone" in _first_events(engine) else "no viewer is taken afterwards")
    yield Row("connections at once", count, 0 if problem else count, problem or f"{MAX_VIEWERS} are taken")


def _connected(engine: Living, greets: bool = True) -> socket.socket:
    """Connects, and says hello if it `greets`; waits while the engine's backlog is full, and up to 20 s for data."""
    viewer = socket.socket(socket.AF_UNIX)
    viewer.connect(str(engine.directory.socket))
    viewer.settimeout(20)
    if greets:
        viewer.sendall(framing.frame(Hello()))
    return viewer


def _first_events(engine: Living) -> str:
    """Returns the first events that a new viewer receives."""
    received = ""
    with _connected(engine) as viewer:
        while "StepsDone" not in received and (more := viewer.recv(4096)):
            received += more.decode(errors="replace")
    return received


def framed(body: bytes) -> bytes:
    """Returns a frame with this body."""
    return struct.pack(">I", len(body)) + body


def _not_a_command(make: Callable[..., bytes], chance: random.Random) -> bytes:
    """Calls `make` until the result is not a valid command."""
    while True:
        body = make(chance.randrange(300)) if make == chance.randbytes else make(chance)
        try:
            msgspec.msgpack.decode(body, type=AnyCommand)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return body


def _mutated_command(chance: random.Random) -> bytes:
    body = bytearray(msgspec.msgpack.encode(chance.choice(COMMANDS)))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0:
                body[at : at + 1] = chance.randbytes(1)
            case 1:
                del body[at : at + chance.randrange(1, 5)]
            case 2:
                body[at:at] = chance.randbytes(chance.randrange(1, 8))
            case _:
                body += body[:at]
    return bytes(body)


def _wrong_length(chance: random.Random) -> bytes:
    """Returns a frame whose length is too large, or too small by one: neither is a command."""
    body = msgspec.msgpack.encode(chance.choice(COMMANDS))
    return struct.pack(">I", chance.choice((len(body) - 1, len(body) + 1, 60_000))) + body


def _oversized(chance: random.Random) -> bytes:
    return struct.pack(">I", chance.choice((65_537, 2**31, 2**32 - 1))) + b"\x81" * chance.randrange(100_000)


def _wrong_value(chance: random.Random) -> bytes:
    return framed(msgspec.msgpack.encode(chance.choice(WRONG)))


def _presets(chance: random.Random, times: int) -> Row:
    task, originals = Task(tiny_config(), "cpu"), _built_in()
    outcomes = {"fit": 0, "refused": 0}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.toml"
        for number in range(times):
            text = NASTY[number] if number < len(NASTY) else mutated(chance, originals)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
            try:
                place(task, read_preset(path), jax.devices())
                outcomes["fit"] += 1
            except UserError:
                outcomes["refused"] += 1
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error} from {text[:200]!r}")
    note = f"{outcomes['refused']} refused, {outcomes['fit']} fit" + "".join(f"; {text}" for text in wrong[:3])
    return Row("changed preset files, read and placed", times, times - len(wrong), note)


def _built_in() -> list[str]:
    return [path.read_text() for path in (PRESETS / "parallelism").glob("*.toml")]


def mutated(chance: random.Random, originals: list[str]) -> str:
    """Returns one of the texts after a few random edits."""
    text = chance.choice(originals)
    for _ in range(chance.randrange(1, 6)):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + 40)
        match chance.randrange(6):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:]
            case 2:
                text = text[:at] + chance.choice("\"'[]{}=.,#\n\x00\x1b\u202e\ud800é0-_") + text[at:]
            case 3:
                text = _with_value(chance, text)
            case 4:
                lines = text.splitlines(keepends=True)
                chance.shuffle(lines)
                text = "".join(lines)
            case _:
                text = text[:at] + "".join(chr(chance.randrange(1, 0x3000)) for _ in range(5)) + text[to:]
    return text


def _with_value(chance: random.Random, text: str) -> str:
    """Returns the text with another value after one of its `=`."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if "=" in line]
    if places:
        number = chance.choice(places)
        lines[number] = f"{lines[number].partition('=')[0]}= {chance.choice(VALUES)}"
    return "\n".join(lines)
