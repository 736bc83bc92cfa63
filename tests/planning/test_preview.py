"""Previews match the compiled programs, only the viewer that asks is answered, and saved presets join the run."""

import asyncio
import queue
from pathlib import Path

import jax
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.planning.estimate import preview
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.program import Program
from shardtui.engine.spec.preset_reader import load_preset, load_presets
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, PreviewPreset
from shardtui.engine.wire.descriptions import Preview
from shardtui.engine.wire.events import CommandRefused, Paused, PresetPreviewed, Welcome
from shardtui.engine.wire.framing import frame, read_event
from shardtui.engine.wire.server import Server
from shardtui.tui.widgets.preset_diff import changes, costs

BAD = '[mesh]\ndata = -1\n[rules]\nlayers = "data"\nmlp = "modle"\n'


def text_of(name: str) -> str:
    return preset_text(load_preset(name))


def previewed(task: Task, before: str, after: str) -> PresetPreviewed:
    """Returns the second answer, with what the traces tell; the first one has all but that."""
    first, second = preview(task, jax.devices(), PreviewPreset(7, "p", before, after))
    assert (first.after.peak_bytes, first.after.arrays) == (None, second.after.arrays)
    return second


def test_previewed_arrays_are_those_of_the_compiled_program(task: Task, programs: dict[str, Program]) -> None:
    for name in ("dp", "fsdp-tp2", "pitfall-replicated-moments"):
        after = previewed(task, text_of("tp"), text_of(name)).after
        compiled = programs[name].description
        assert after.arrays == compiled.arrays
        assert after.mesh == compiled.mesh
        assert compiled.memory
        assert after.argument_bytes == compiled.memory.arguments


@pytest.mark.core
def test_an_edit_lists_its_changes_and_costs_and_an_invalid_preset_its_problems(task: Task) -> None:
    answer = previewed(task, text_of("fsdp-tp2"), text_of("fsdp-tp2").replace('mlp = "model"', 'mlp = ""'))
    assert answer.number == 7
    found = changes(answer)
    kernels = [change for change in found if change.after.name == "blocks.mlp.up.kernel"]
    assert [(change.moments, change.bytes_after // (change.bytes_before or 1)) for change in kernels] == [(2, 2)]
    assert [change.after.name for change in found][:2] == ["blocks.mlp.down.kernel", "blocks.mlp.up.kernel"]
    assert all("mlp" in change.after.logical_axes for change in found)
    arguments, peak, *sent = costs(answer)
    grown = sum(change.difference for change in found)
    assert arguments.before and arguments.after == arguments.before + grown
    assert peak.ratio and peak.ratio > 0
    assert {cost.label for cost in sent} >= {"sent fsdp", "sent model"}
    answer = previewed(task, text_of("fsdp"), text_of("fsdp"))
    assert changes(answer) == []
    assert all(cost.ratio in (0, None) for cost in costs(answer))
    answer = previewed(task, text_of("dp"), BAD)
    assert [problem.partition(": ")[0] for problem in answer.after.problems] == ["p.toml", "p"]
    assert changes(answer) == []
    fixed = changes(previewed(task, BAD, text_of("dp")))
    assert len(fixed) > 10
    assert all(change.before is None for change in fixed)
    assert "not valid TOML" in previewed(task, "", "[mesh").after.problems[0]


async def test_only_the_viewer_that_asks_is_answered(home: Path) -> None:
    socket = Path(f"/tmp/shardtui-test-preview-{home.name[-8:]}.sock")
    inbox: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
    question = PreviewPreset(3, "p", "", "")
    answers = [PresetPreviewed(number=3, before=Preview(problems=[]), after=Preview(problems=[each])) for each in "ab"]
    server = Server(socket, inbox.put)
    server.start()
    try:
        (reader, writer), (other, quiet) = [await asyncio.open_unix_connection(socket) for _ in range(2)]
        for greeted in (writer, quiet):
            greeted.write(frame(Hello()))
        assert [await read_event(each) for each in (reader, other)] == [Welcome()] * 2
        writer.write(frame(question))
        assert isinstance(await read_event(reader), CommandRefused)
        server.answer_with(lambda _: iter(answers))
        writer.write(frame(question) + frame(Pause()))
        assert [await asyncio.wait_for(read_event(reader), 60) for _ in answers] == answers
        server.publish(Paused(step=1, seq=1))
        assert await asyncio.wait_for(read_event(other), 5) == Paused(step=1, seq=1)
        assert (inbox.get(timeout=5), inbox.empty()) == (Pause(), True)
    finally:
        server.close()


def test_a_saved_preset_joins_the_run(task: Task, tmp_path: Path, home: Path) -> None:
    compiler = Compiler(task, {"dp": load_preset("dp")}, jax.devices(), tmp_path / "presets")
    info = compiler.add("mine", text_of("fsdp"))
    assert (info.name, info.fits, info.source) == ("mine", True, str(tmp_path / "presets/mine.toml"))
    assert load_preset(info.source).rules == load_preset("fsdp").rules
    assert "mine" in {preset.name for preset in load_presets(tmp_path / "presets")[0]}
    known = "the run already has a preset with this name"
    for name, text, says in (
        ("mine", text_of("fsdp"), known),
        ("dp", text_of("fsdp"), known),
        ("bad", BAD, "layers 2 does not divide by 8"),
        ("worse", "[mesh", "not valid TOML"),
    ):
        with pytest.raises(UserError, match=says):
            compiler.add(name, text)
    assert [path.name for path in (tmp_path / "presets").glob("*")] == ["mine.toml"]
