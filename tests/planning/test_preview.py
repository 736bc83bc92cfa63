"""What a preset would be is what it then is; one viewer is told; and a preset that was made is one of the run's."""

import asyncio
import queue
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import pytest
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.models.task import Task
from shardtui.engine.planning.preview import weigh
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.program import Program
from shardtui.engine.spec.preset_file import preset_text
from shardtui.engine.spec.preset_reader import load_preset, load_presets
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, WeighPreset
from shardtui.engine.wire.events import CommandRefused, Paused, PresetWeighed, Welcome
from shardtui.engine.wire.framing import frame, read_event
from shardtui.engine.wire.server import Server
from shardtui.tui.state.consequences import changes, costs

BAD = '[mesh]\ndata = -1\n[rules]\nlayers = "data"\nmlp = "modle"\n'


def text_of(name: str) -> str:
    return preset_text(load_preset(name))


def weighed(task: Task, before: str, after: str) -> PresetWeighed:
    return weigh(task, jax.devices(), WeighPreset(7, "p", before, after))


def test_what_is_weighed_is_what_is_compiled(task: Task, programs: dict[str, Program]) -> None:
    for name in ("dp", "fsdp-tp2", "pitfall-replicated-moments"):
        told = weighed(task, text_of("tp"), text_of(name)).after
        compiled = programs[name].description
        assert told.arrays == compiled.arrays
        assert told.mesh == compiled.mesh
        assert compiled.memory
        assert told.argument_bytes == compiled.memory.arguments


def test_changes_and_costs_of_an_edit(task: Task) -> None:
    told = weighed(task, text_of("fsdp-tp2"), text_of("fsdp-tp2").replace('mlp = "model"', 'mlp = ""'))
    assert told.number == 7
    found = changes(told)
    kernels = [change for change in found if change.after.name == "blocks.mlp.up.kernel"]
    assert [(change.moments, change.bytes_after // (change.bytes_before or 1)) for change in kernels] == [(2, 2)]
    assert [change.after.name for change in found][:2] == ["blocks.mlp.down.kernel", "blocks.mlp.up.kernel"]
    assert all("mlp" in change.after.logical_axes for change in found)
    arguments, peak, *sent = costs(told)
    grown = sum(change.difference for change in found)
    assert arguments.before and arguments.after == arguments.before + grown
    assert peak.ratio and peak.ratio > 0
    assert {cost.label for cost in sent} >= {"sent fsdp", "sent model"}


def test_nothing_changes_without_an_edit(task: Task) -> None:
    told = weighed(task, text_of("fsdp"), text_of("fsdp"))
    assert changes(told) == []
    assert all(cost.ratio in (0, None) for cost in costs(told))


def test_problems_are_told_in_the_place_of_arrays(task: Task) -> None:
    told = weighed(task, text_of("dp"), BAD)
    assert [problem.partition(": ")[0] for problem in told.after.problems] == ["p.toml", "p"]
    assert changes(told) == []
    mended = changes(weighed(task, BAD, text_of("dp")))
    assert len(mended) > 10
    assert all(change.before is None for change in mended)
    assert "not valid TOML" in weighed(task, "", "[mesh").after.problems[0]


def test_the_one_viewer_that_asks_is_told(task: Task, home: Path) -> None:
    socket = Path(f"/tmp/shardtui-test-weighing-{home.name[-8:]}.sock")
    inbox: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
    server = Server(socket, inbox.put)
    server.start()
    question = WeighPreset(3, "p", text_of("dp"), text_of("fsdp"))

    async def viewers() -> None:
        (reader, writer), (other, quiet) = [await asyncio.open_unix_connection(socket) for _ in range(2)]
        for greeted in (writer, quiet):
            greeted.write(frame(Hello()))
        assert [await read_event(each) for each in (reader, other)] == [Welcome()] * 2
        writer.write(frame(question))
        assert isinstance(await read_event(reader), CommandRefused)
        server.answer_with(partial(weigh, task, jax.devices()))
        writer.write(frame(question) + frame(Pause()))
        told = await asyncio.wait_for(read_event(reader), 60)
        assert isinstance(told, PresetWeighed)
        assert (told.number, told.seq, told.after.problems) == (3, 0, [])
        server.publish(Paused(step=1, seq=1))
        assert await asyncio.wait_for(read_event(other), 5) == Paused(step=1, seq=1)

    try:
        asyncio.run(viewers())
        assert inbox.get() == Pause()
        assert inbox.empty()
    finally:
        server.close()


def names(folder: Path) -> Sequence[str]:
    return [path.name for path in folder.glob("*")]


def test_a_preset_that_was_made_is_one_of_the_runs(task: Task, tmp_path: Path, home: Path) -> None:
    compiler = Compiler(task, {"dp": load_preset("dp")}, jax.devices(), tmp_path / "presets")
    info = compiler.add("mine", text_of("fsdp"))
    assert (info.name, info.fits, info.source) == ("mine", True, str(tmp_path / "presets/mine.toml"))
    assert load_preset(info.source).rules == load_preset("fsdp").rules
    assert "mine" in {preset.name for preset in load_presets(tmp_path / "presets")[0]}
    for name, text, says in (
        ("mine", text_of("fsdp"), "the run has one of that name"),
        ("dp", text_of("fsdp"), "the run has one of that name"),
        ("bad", BAD, "layers 2 does not divide by 8"),
        ("worse", "[mesh", "not valid TOML"),
    ):
        with pytest.raises(Invalid, match=says):
            compiler.add(name, text)
    assert names(tmp_path / "presets") == ["mine.toml"]
