"""The Arrays, Mesh, Traffic and Lint views over recorded runs, driven by keys and checked on the screen."""

from pathlib import Path

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.hlo.layout import bytes_per_device
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import (
    DevicesDiffer,
    EngineStopped,
    Event,
    Inspection,
    MemoryMeasured,
    TrainingStarted,
    WrongDevice,
)
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.messages import EventsArrived
from shardtui.tui.state.tables import by_source
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot
from textual.widgets import DataTable

from ..conftest import READY, tiny_config
from ..recorded import preset_info, record, started, steps, switched
from . import recordings
from .recordings import inspections
from .test_app import finished, until

WIDE = ("layers=48", "embed=512", "heads=8", "mlp=512", "batch_size=512")


def record_inspections(inspections: list[Inspection], stem: str) -> RunDirectory:
    """Writes a run that trained with each preset in turn and ended."""
    first = inspections[0]
    names = [inspection.compiled.preset for inspection in inspections]
    directory = run_directory.create(tiny_config(run=stem, preset=names[0]))
    presets = [preset_info(name, mesh={}) for name in names]
    ready = msgspec.structs.replace(READY, devices=first.devices, flops_per_step=first.flops_per_step, presets=presets)
    events: list[Event] = [started(config=directory.config), ready, TrainingStarted(preset=names[0])]
    for before, inspection in zip([None, *names], inspections, strict=False):
        events += [inspection.compiled, inspection.inspected]
        if before:
            events.append(switched(before, inspection.compiled.preset, step=1))
        events.append(steps(1, 1.0))
    record(directory, *events, EngineStopped(step=1, reason="stopped"))
    return directory


@pytest.fixture
def described() -> list[Inspection]:
    return recordings.described("dp", "pitfall-first-dim", "fsdp-tp2")


def table(app: ShardtuiApp) -> DataTable:
    return app.screen.query_one(DataTable)


def names(app: ShardtuiApp) -> list[str]:
    """Returns the first column, without marks."""
    return [str(table(app).get_row_at(row)[0]).strip(" ●▾▸") for row in range(table(app).row_count)]


async def press(pilot: Pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def test_arrays_are_sorted_filtered_and_folded(home: Path, described: list[Inspection]) -> None:
    count = len(described[-1].compiled.arrays) + len(described[-1].inspected.arrays)
    async with finished(record_inspections(described, "arrays")) as (app, pilot):

        def per_device() -> list[int]:
            mesh, found = app.state.layout.mesh, arrays.found
            return [bytes_per_device(found[key].arrays[0], mesh) for key in arrays.rows.keys]

        await press(pilot, "2")
        arrays = app.screen.query_one("ArrayTable")
        assert len(names(app)) == count
        assert names(app)[0] == "embedding", "the largest of those replicated twice under fsdp-tp2"
        assert f"─ {count} arrays ─" in screen_text(app)
        while arrays.sorted_by != "per device":
            await press(pilot, "o")
        each = per_device()
        assert each == sorted(each, reverse=True) and len(set(each)) > 2
        await press(pilot, "O")
        assert per_device() == each[::-1]
        while arrays.sorted_by != "array":
            await press(pilot, "o")
        assert names(app) == sorted(names(app))
        await press(pilot, "slash", *"grad mlp@model", "enter")
        assert set(names(app)) == {f"grad.blocks.mlp.{name}" for name in ("up.kernel", "up.bias", "down.kernel")}
        await press(pilot, "g")
        assert names(app) == ["gradients", "grad", "blocks", "mlp", "up", "bias", "kernel", "down", "kernel"]
        table(app).move_cursor(row=names(app).index("mlp"))
        await press(pilot, "enter")
        assert names(app) == ["gradients", "grad", "blocks", "mlp"]
        await press(pilot, "escape", "g")
        assert len(names(app)) == count
        assert not app.screen.query_one("Input").display


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=("80 × 24", "140 × 40"))
async def test_m_in_watch_shows_what_fills_the_memory_of_the_running_program(
    home: Path, described: list[Inspection], size: tuple[int, int]
) -> None:
    compiled = described[-1].compiled
    async with finished(record_inspections(described, "memory"), size) as (app, pilot):
        await until(lambda: app.screen.query("LossChart"), "the panels")
        await press(pilot, "m")
        await until(lambda: "fsdp-tp2: memory of a step, predicted" in screen_text(app), "the dialog")
        text = screen_text(app)
        assert f"peak at {formatting.percent(compiled.at_peak.at)}" in text
        assert "▄" in text or "█" in text
        assert formatting.size(by_source(compiled.peak_buffers)[0].bytes) in text
        assert formatting.size(compiled.memory.peak) in text, "the compiler's own figure"
        await press(pilot, "m")
        await until(lambda: app.current_mode == "watch" and len(app.screen_stack) == 1, "Watch again")


async def test_a_switch_marks_the_arrays_and_traffic_that_it_changed(home: Path, described: list[Inspection]) -> None:
    async with finished(record_inspections(described, "marks")) as (app, pilot):
        await press(pilot, "2")
        marked = {row.strip(" ●") for row in map(str, table(app).get_column_at(0)) if "●" in row}
        assert {"blocks.mlp.up.kernel", "logits", "grad.norm.scale"} <= marked
        assert not {"step", "seed"} & marked
        await press(pilot, "4")
        flows = app.screen.query_one("Flows")
        assert any("all-gather" in line.plain and "● pitfall-first-dim: none" in line.plain for line in flows.lines)
        await press(pilot, "b", "b")
        assert flows.border_subtitle == "compared with dp"
        assert any("● dp: " in line.plain for line in flows.lines)


async def test_keys_choose_the_drawn_dims_and_slices_and_follow_a_device(
    home: Path, described: list[Inspection]
) -> None:
    async with finished(record_inspections(described, "pane")) as (app, pilot):
        await press(pilot, "2", "slash", *"blocks.attention.qkv activation", "enter")
        pane = app.screen.query_one("ShardingPane")
        assert pane.subject.array.name == "blocks.attention.qkv"
        assert "batch ↓  heads →   seq 0…15, qkv 0…2, head_dim 0…3 unsharded" in pane.lines[0].plain
        await press(pilot, "tab", "tab", "down", "right")
        pane.focus()
        await press(pilot, "down", "right")
        assert "batch 2…3, heads 4…7 · " in pane.lines[-1].plain and "on CPU 3" in pane.lines[-1].plain
        assert any("›CPU 3‹" in line.plain for line in pane.lines)
        await press(pilot, "v")
        assert pane.subject.rows == 1
        assert "batch 2…3 of 8 (, .)" in pane.lines[0].plain
        await press(pilot, "full_stop")
        assert "batch 4…5 of 8" in pane.lines[0].plain
        await press(pilot, "f")
        assert app.state.followed == 5
        await press(pilot, "escape")
        assert "device 5 holds" in screen_text(app)
        await press(pilot, "slash", *"logits")
        assert str(table(app).get_row_at(0)[1]) == "[4:6, :, 128:256]"
        await press(pilot, "enter", "3")
        assert any("◆CPU 5" in line.plain for line in app.screen.query_one("MeshPane").lines)


async def test_mesh_describes_and_follows_the_device_under_the_cursor(home: Path, described: list[Inspection]) -> None:
    async with finished(record_inspections(described, "mesh")) as (app, pilot):

        def details() -> str:
            return " ".join(" ".join(line.plain for line in app.screen.query_one("DeviceDetails").lines).split())

        await press(pilot, "3", "down", "down", "right")
        assert app.screen.query_one("DeviceDetails").border_title == "device 5"
        assert "fsdp index 2 of 4; group: devices 1, 3, 5, 7" in details()
        assert "model index 1 of 2; group: devices 4, 5" in details()
        await press(pilot, "f", "2")
        assert "device 5 holds" in screen_text(app)
        await press(pilot, "3", "f")
        assert app.state.followed is None
        about = {"is_certain": True, "arrays": ["x", "y"], "problem": "device 5 differs"}
        app.post_message(EventsArrived([DevicesDiffer(step=7, devices=[WrongDevice(5, "cpu", 0, "here")], **about)]))
        await until(lambda: any("✗CPU 5" in line.plain for line in app.screen.query_one("MeshPane").lines), "the mark")
        assert "✗ differed from its replicas after step 7, in 2 arrays" in details()
        in_use = {4: 3_000_000, 5: 9_250_000}
        most = {"source": "allocator", "bytes_in_use": 9_250_000, "peak_bytes": None, "limit_bytes": None}
        app.post_message(EventsArrived([MemoryMeasured(**most, bytes_by_device=in_use)]))
        await until(lambda: "9.25 MB" in details(), "the bytes in use on device 5")
        await press(pilot, "left")
        await until(lambda: "3 MB" in details(), "those on device 4")


async def test_mesh_shows_what_is_held_after_a_switch_on_the_same_mesh_and_its_cursor_moves_by_boxes(
    home: Path, described: list[Inspection]
) -> None:
    first = described[0].compiled
    held = formatting.size(sum(bytes_per_device(array, first.mesh) for array in first.arrays))
    less = msgspec.structs.replace(first, preset="less", arrays=first.arrays[:1])
    async with finished(record_inspections(described[:1], "held")) as (app, pilot):
        await press(pilot, "3", "v")
        pane = app.screen.query_one("MeshPane")
        assert any(held in line.plain for line in pane.lines)
        app.post_message(EventsArrived([less, switched("dp", "less")]))
        few = formatting.size(bytes_per_device(first.arrays[0], first.mesh))
        await until(lambda: any(few in line.plain for line in pane.lines), "the bytes under the other preset")
        await pilot.resize_terminal(140, 40 + 18 - pane.size.height)  # a box is two lines high, with a rule
        await until(lambda: (pane.size.height, len(pane.lines)) == (18, 18), "the smaller pane")
        await press(pilot, "down")
        assert any("›CPU 1‹" in line.plain for line in pane.lines)


async def test_no_findings_is_provisional_until_activations_are_known(home: Path, described: list[Inspection]) -> None:
    """Also if the inspection adds no finding."""
    inspection = msgspec.structs.replace(described[0], flops_per_step=1e15)
    directory = record_inspections([inspection], "asked")
    lines = [line for line in directory.events.read_bytes().splitlines(True) if b'"PresetInspected"' not in line]
    directory.events.write_bytes(b"".join(lines))
    async with finished(directory) as (app, pilot):
        await press(pilot, "5")
        assert "no findings so far" in screen_text(app)
        app.post_message(EventsArrived([inspection.inspected]))
        await until(lambda: "✓ no findings" in screen_text(app), "the inspection")
        assert "so far" not in screen_text(app)


@pytest.mark.parametrize("size", [(60, 15), pytest.param((80, 24), marks=pytest.mark.slow), (140, 40)])
async def test_the_last_line_of_every_view_ends_with_help_and_palette(
    home: Path, described: list[Inspection], size: tuple[int, int]
) -> None:
    async with finished(record_inspections(described, "tiny"), size) as (app, pilot):
        for key in "12345670":
            await press(pilot, key)
            await until(
                lambda: screen_text(app).splitlines()[-1].endswith(" ? Help  ^p Palette"), f"the keys of view {key}"
            )


async def test_a_view_is_exported_as_svg_and_text_or_not_at_all(
    home: Path, described: list[Inspection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    async with finished(record_inspections(described, "export")) as (app, pilot):
        await press(pilot, "4", "e")
        assert "all-gather" in (home / "export-traffic-1.txt").read_text()
        svg = (home / "export-traffic-1.svg").read_text()
        assert svg.startswith("<svg") and "@font-face" not in svg
        (home / "export-mesh-1.svg").mkdir()
        await press(pilot, "3", "e")
        assert app.current_mode == "mesh"
        assert not (home / "export-mesh-1.txt").exists(), "only one of the two files was written"


HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "[bold red]markup[/] [/] [@click=app.quit]x[/]",
    "x" * 300,
    "漢字 العربية ไทย",
    "a\u202eb\u200bc\x9bd\ne",
)


async def test_hostile_names_reach_the_screen_as_text(home: Path, described: list[Inspection]) -> None:
    replace, compiled, inspected = msgspec.structs.replace, described[1].compiled, described[1].inspected
    arrays = [replace(each, name=name) for each, name in zip(compiled.arrays, HOSTILE, strict=False)]
    activations = [replace(each, logical_axes=[HOSTILE[0]] * len(each.shape)) for each in inspected.arrays]
    collectives = [
        replace(each, op_name=name, source=f"/home/{name}.py:1")
        for each, name in zip(compiled.collectives, HOSTILE, strict=False)
    ]
    hostile = replace(
        described[1],
        compiled=replace(compiled, arrays=arrays, collectives=collectives),
        inspected=replace(inspected, arrays=activations, problem=HOSTILE[0]),
    )
    async with finished(record_inspections([hostile], "hostile"), size=(200, 50)) as (app, pilot):
        seen = ""
        for keys in ("2", "o o", *["down"] * 6, "t", "4", *["down"] * 5, "5", "3", "0", "1"):
            await press(pilot, *keys.split())
            text = screen_text(app)
            assert not {c for c in text if c in "\x1b\x9b\u202e\u200b"}
            seen += text
    for shown in ("\\x1b[31mred\\x1b[0m", HOSTILE[1], HOSTILE[3], "a\\u202eb\\u200bc\\x9bd e", "x" * 60):
        assert shown in seen


@pytest.mark.slow
async def test_views_of_512_devices_and_48_layers(home: Path) -> None:
    (wide,) = inspections(WIDE, 512, "fsdp-tp2")
    assert len(wide.compiled.mesh.device_ids) == 512
    assert {array.name: array.shape for array in wide.compiled.arrays}["blocks.mlp.up.kernel"] == [48, 512, 512]
    assert {info.count for info in wide.compiled.collectives or ()} >= {1, 48}
    async with finished(record_inspections([wide], "wide")) as (app, pilot):
        await press(pilot, "2")
        assert len(names(app)) == len(wide.compiled.arrays) + len(wide.inspected.arrays)
        await press(pilot, "slash", *"blocks.mlp.up.kernel parameter", "enter")
        pane = app.screen.query_one("ShardingPane")
        pane.focus()
        await pilot.pause()
        assert any("fsdp 0…" in line.plain and "model 0" in line.plain for line in pane.lines)
        assert "shards" in pane.lines[-1].plain
        await press(pilot, "z", "down", "right")
        assert "embed 2…3, mlp 256…511" in pane.lines[-1].plain and "CPU 3" in pane.lines[-1].plain
        pane.action_move(300, 0)
        await pilot.pause()
        assert "embed 510…511" in pane.lines[-1].plain
        await press(pilot, "3")
        assert app.screen.query_one("MeshPane").lines
