"""Shows texts with terminal control sequences or markup in every place of the UI that shows a text.

What commands print comes from one place: tests/base/test_output.py and tests/tui/test_clean.py."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

import msgspec
from msgspec.structs import replace
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.wire import events, run_directory
from shardtui.engine.wire.checkpoints import CheckpointInfo
from shardtui.engine.wire.collective import CollectiveInfo
from shardtui.engine.wire.descriptions import CorpusInfo, DeviceInfo, PresetInfo, RematerializationInfo
from shardtui.engine.wire.events import AnyEvent, Inspection
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import READY, TINY, tiny_config
from ..recorded import switched
from ..suite import own_directories
from ..terminal import Terminal
from ..tui.recordings import inspections
from .row import Row
from .terminals import read_for

TEXTS = (
    *("\x1b]0;{}\x07", "\x1b]2;{}\x1b\\", "\x1b]52;c;{}\x07", "\x1b]8;;http://{}\x1b\\x\x1b]8;;\x1b\\"),
    *("\x1b]50;{}\x07", "\x1b[2J{}", "\x1b[31m{}\x1b[0m", "\x1b[1;1H{}", "\x1b[6n{}", "\x1b[c{}", "\x1b[?1049l{}"),
    *("\x1b[?1000l{}", "\x1bP{}\x1b\\", "\x1b_{}\x1b\\", "\x1b^{}\x1b\\", "\x1bX{}\x1b\\", "\x1bc{}", "\x1b#8{}"),
    *("\x1b(0{}", "\x1b7{}\x1b8", "\x9b31m{}", "\x9d0;{}\x9c", "\x90{}\x9c", "\x84{}\x85", "{}\x07", "{}\x08\x08"),
    *("{}\x7f", "{}\x0e\x0f", "{}\r\n>"),
    *("\u202e{}\u202c", "\u2066{}\u2069", "\u200f{}", "\u061c{}", "{}\u200b\u200d", "{}\ufeff", "{}\u2028{}\u2029"),
    *("{}\u00ad", "{}\u180e", "{}\u3164", "{}\ufe0f", "{}\U000e0041\U000e007f", "{}\ufff9\ufffb", "{}\U000e0100"),
    *("[bold red]{}[/]", "[@click=app.exit]{}[/]", "[/]{}", "[{}", "{}[/bold]", "[link=http://x]{}[/link]", ":bomb:{}"),
    *("[on red]{}[/on red][@click=app.stop]x", "$primary {} %s %(x)s", "{}\\[bold]", "漢字{}العربية", "{}" + "y" * 300),
)
"""Hostile texts; `{}` is replaced by a marker that says where the text came from."""

OWN_SEQUENCES = re.compile(
    r"\x1b\[[0-9;]*[mHABCDGJK]|\x1b\[\?[0-9]+(?:[hl]|\$p)|\x1b\[[<>=][0-9]*u|\x1b\[[0-9] q|\x1b\]22;[a-z-]+\x07"
    r"|\x1b\[2[23];2t|\x1b\]2;[^\x00-\x1f\x7f-\x9f]*\x07|\x1b\]9;4;[0-9;]+\x07"
)
"""Sequences that Textual, rich and the UI write by themselves: the last ones are the window's title and progress."""
OWN_CHARACTERS = str.maketrans("", "", "\r\n\u2800")
HOME, END, DOWN, PAGE_DOWN, ENTER, ESCAPE, PALETTE = "\x1b[H", "\x1b[F", "\x1b[B", "\x1b[6~", "\r", "\x1b", "\x10"


@dataclass
class Texts:
    """Makes hostile texts for each place, each with a unique marker."""

    given: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Texts by place and marker."""

    def of(self, place: str, fits: Callable[[str], bool] = lambda text: True) -> list[str]:
        """Returns the hostile texts that are valid in a place."""
        number = len(self.given)
        marked = {f"z{number}q{n}z": text for n, text in enumerate(TEXTS) if fits(text)}
        self.given[place] = {marker: text.replace("{}", marker) for marker, text in marked.items()}
        return list(self.given[place].values())

    def line(self, place: str) -> str:
        """Returns all texts in one, for places that hold a single text."""
        return " ".join(self.of(place))

    def rows(self, output: bytes, problem: str) -> Iterator[Row]:
        """Yields a row per place: which texts reached the terminal unescaped."""
        shown = output.decode(errors="replace")
        problem = problem or unexpected(shown)
        plain = OWN_SEQUENCES.sub("", shown)
        for place, texts in self.given.items():
            raw = [text for text in texts.values() if not text.isprintable() and text in shown]
            is_seen = any(marker in plain for marker in texts)
            note = problem or (f"{raw[0]!r} came through" if raw else "" if is_seen else "not shown")
            yield Row(f"hostile text: {place}", len(texts), 0 if problem else len(texts) - len(raw), note[:200])


def unexpected(shown: str) -> str:
    """Returns the first sequence or character that neither Textual nor rich writes, with its context; else empty."""
    rest = OWN_SEQUENCES.sub("", shown).translate(OWN_CHARACTERS)
    at = next((at for at, character in enumerate(rest) if not character.isprintable()), None)
    return "" if at is None else f"foreign: {rest[max(0, at - 20) : at + 20]!r}"


def run(times: int) -> Iterator[Row]:
    """Shows the texts `times` times, in terminals of alternating size."""
    with own_directories():
        (described,) = inspections(TINY, 8, "dp")
        for number in range(times):
            yield from _recorded(described, number)
            yield from _lost(number)


def _recorded(described: Inspection, number: int) -> Iterator[Row]:
    """Shows a run with hostile events in every view."""
    texts = Texts()
    directory = _record(f"recorded-{number}", _events(described, texts))
    return texts.rows(*_visit(directory, (250, 80) if number % 2 == 0 else (80, 24)))


def _lost(number: int) -> Iterator[Row]:
    """Shows a run whose engine crashed and left a hostile line in its log."""
    texts = Texts()
    directory = _record(f"lost-{number}", [events.EngineStarted(protocol=1, pid=1, config=tiny_config())])
    is_a_line: Callable[[str], bool] = lambda text: text.splitlines() == [text]  # noqa: E731
    directory.log.write_text(" ".join(texts.of("last line of engine.log", is_a_line)))
    return texts.rows(*_visit(directory, (200, 60)))


def _record(name: str, made: list[AnyEvent]) -> RunDirectory:
    directory = run_directory.create(tiny_config(run=name))
    lines = (encode_json(replace(event, seq=seq)) for seq, event in enumerate(made, 1))
    directory.events.write_bytes(b"\n".join(lines) + b"\n")
    return directory


def _events(described: Inspection, texts: Texts) -> list[AnyEvent]:
    axes = dict(zip(described.compiled.mesh.axes, texts.of("mesh axes"), strict=False))
    compiled, inspected = _renamed(described.compiled, axes), _renamed(described.inspected, axes)
    preset, run, model = (texts.of(place)[0] for place in ("active preset", "run", "model"))  # longer ones have no room
    config = tiny_config(run=run, model_name=model, preset="dp", data=texts.line("data"))
    kept = [
        CheckpointInfo(step=step, time=0.0, preset=each, devices=8, loss=None, bytes=1)
        for step, each in enumerate(texts.of("presets of checkpoints"), 1)
    ]
    first, *others = described.devices
    platforms, kinds = texts.of("platform"), texts.of("device kind")
    devices = [
        replace(first, kind=kinds[0], platform=platforms[0]),  # short, so that the bar has room for it
        *(replace(device, kind=" ".join(kinds), platform=" ".join(platforms)) for device in others),
    ]
    return [
        events.EngineStarted(protocol=1, pid=1, config=config),
        _ready(described, devices, texts, preset),
        events.PresetCompiling(preset=preset),
        events.TrainingStarted(preset=preset),
        replace(
            compiled, preset=preset, arrays=_arrays(compiled.arrays, texts), collectives=_collectives(compiled, texts)
        ),
        replace(
            inspected, preset=preset, rematerializations=_rematerializations(texts), problem=texts.line("inspection")
        ),
        events.StepsDone(step=1, losses=[1.0], step_seconds=[0.1], input_wait_seconds=0.0),
        switched(texts.line("preset left"), preset, step=1),
        events.CommandRefused(problem=texts.line("refusal")),
        events.SwitchFailed(
            to_preset=texts.line("preset not reached"), step=1, preset=preset, problems=texts.of("failed switch")
        ),
        events.Paused(step=1, problem=texts.line("pause")),
        events.CheckpointFailed(step=1, problems=texts.of("failed checkpoint")),
        events.CheckpointDamaged(step=1, problems=texts.of("damaged checkpoint"), set_aside=texts.line("damaged name")),
        events.CheckpointsKept(checkpoints=kept),
        events.DevicesDiffer(
            step=1,
            devices=[events.WrongDevice(0, texts.line("wrong device"), 0, texts.line("its host"))],
            is_certain=True,
            arrays=texts.of("differing arrays"),
            problem=texts.line("difference"),
        ),
        events.RestoreFailed(step=1, problems=texts.of("failed way back")),
        events.AheadEnded(preset=texts.line("likely preset"), problem=texts.line("not compiled ahead")),
        events.ProfileFailed(step=1, problems=texts.of("failed profile")),
        events.Failed(problems=texts.of("failure"), refused=False),
    ]


def _renamed(message: msgspec.Struct, names: dict[str, str]) -> msgspec.Struct:
    """Returns the message with every text and key replaced that is in `names`."""

    def renamed(value: object) -> object:
        match value:
            case str():
                return names.get(value, value)
            case list():
                return [renamed(item) for item in value]
            case dict():
                return {renamed(key): renamed(item) for key, item in value.items()}
            case _:
                return value

    return msgspec.convert(renamed(msgspec.to_builtins(message)), type(message))


def _ready(described: Inspection, devices: list[DeviceInfo], texts: Texts, active: str) -> events.EngineReady:
    names = (active, *texts.of("preset names"))
    details = (cycle(texts.of(f"presets' {what}")) for what in ("summaries", "lessons", "sources", "problems"))
    presets = [
        PresetInfo(
            name=name,
            summary=summary,
            teaches=teaches,
            source=source,
            mesh={why: 8},
            fits=number % 2 == 0,
            problems=[why],
        )
        for number, (name, summary, teaches, source, why) in enumerate(zip(names, *details, strict=False))
    ]
    return replace(
        READY,
        versions=dict(zip(texts.of("packages"), texts.of("versions"), strict=True)),
        devices=devices,
        warnings=texts.of("warnings"),
        dtype=texts.line("dtype"),
        flops_per_step=described.flops_per_step,
        corpus=CorpusInfo(texts.line("corpus"), 1, 1, texts.line("hash")),
        presets=presets,
        preset_problems=texts.of("presets left out"),
    )


def _arrays(arrays: list, texts: Texts) -> list:
    places = ("array names", "dtypes", "logical axes", "reasons")
    kinds = zip(cycle(arrays), *map(texts.of, places), strict=False)
    return [
        replace(each, name=name, dtype=dtype, logical_axes=[axis] * len(each.shape), reasons=[why] * len(each.shape))
        for each, name, dtype, axis, why in kinds
    ]


def _collectives(compiled: msgspec.Struct, texts: Texts) -> list[CollectiveInfo]:
    places = ("collectives", "operations", "sources")
    return [
        replace(info, kind=kind, op_name=op, source=source, axes=[kind], dtype=op)
        for info, kind, op, source in zip(cycle(compiled.collectives), *map(texts.of, places), strict=False)
    ]


def _rematerializations(texts: Texts) -> list[RematerializationInfo]:
    shown = ("operation", "from_sharding", "to_sharding", "op_name")
    return [
        RematerializationInfo(shape=[1], source=source, **dict.fromkeys(shown, text))
        for text, source in zip(texts.of("rematerializations"), texts.of("their sources"), strict=True)
    ]


def _visit(directory: RunDirectory, size: tuple[int, int]) -> tuple[bytes, str]:
    """Visits all views with keys and clicks; returns what the UI wrote and what went wrong."""
    ui = Terminal("attach", directory.name, size=size)
    ui.until(lambda text: "crashed" in text or "failed" in text, "the end of the run")
    for view in "1234567890":
        _press(ui, view)
        for row in range(2, size[1], 4):
            ui.send(f"\x1b[<0;{20 + row};{row}M\x1b[<0;{20 + row};{row}m")
        _press(ui, HOME)
        for _ in range(8):
            _press(ui, PAGE_DOWN)
    _press(ui, "c", *[PAGE_DOWN] * 8, ESCAPE)
    _press(ui, "1", END, ENTER, HOME, *[DOWN] * 2 * len(TEXTS))  # it unfolds the presets that do not fit
    _press(ui, "2", HOME, *[DOWN] * len(TEXTS))
    _press(ui, "4", HOME, *[DOWN] * len(TEXTS))
    _press(ui, "?", "?", PALETTE, "Switch", *[PAGE_DOWN] * 8)
    if ui.process.poll() is not None:
        return ui.output, f"the UI ended: {ui.output[-80:]!r}"
    for _ in range(20):  # the palette may still be busy
        if ui.process.poll() is not None:
            break
        ui.send(ESCAPE)
        read_for(ui, 0.5)
        ui.send("d")
        read_for(ui, 1)
    code = ui.exit_code(draw=False)
    return ui.output, "" if code == 1 and b"Traceback" not in ui.output else f"exit code {code}: {ui.output[-80:]!r}"


def _press(ui: Terminal, *keys: str) -> None:
    """Sends keys, each once the UI has answered the previous one and is quiet."""
    for key in keys:
        ui.send(key)
        read_for(ui, 2, quiet=0.15)
