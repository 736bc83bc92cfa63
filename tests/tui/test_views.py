"""Arrays, Mesh, Traffic and Lint over recorded runs: driven by keys, read off the screen."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import PresetInfo
from shardtui.engine.wire.events import (
    AnyEvent,
    EngineStarted,
    EngineStopped,
    Inspection,
    StepsDone,
    Switched,
    TrainingStarted,
)
from shardtui.engine.wire.framing import encode_json
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.mesh import MeshPane
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.device_details import DeviceDetails
from shardtui.tui.widgets.flows import Flows
from shardtui.tui.widgets.sharding_pane import ShardingPane
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, OptionList

from ..conftest import READY, TINY, tiny_config
from .test_app import shown, until

WIDE = ("layers=48", "embed=512", "heads=8", "mlp=512", "batch_size=512")


def inspections(settings: tuple[str, ...], devices: int, *presets: str) -> list[Inspection]:
    """From an engine of its own, as `shardtui inspect` asks one."""
    model = load_model("nano", settings)
    config = tiny_config(model=model.model, training=model.training, preset=presets[0], devices=devices)
    answer = subprocess.run(
        [sys.executable, "-m", "shardtui.engine", "inspect", encode_json(config).decode(), *presets[1:]],
        stdout=subprocess.PIPE,
        check=True,
    )
    return [msgspec.json.decode(line, type=Inspection) for line in answer.stdout.splitlines()]


def record(inspections: list[Inspection], stem: str) -> RunDirectory:
    """A run that trained under each preset in turn and ended."""
    first = inspections[0]
    names = [inspection.compiled.preset for inspection in inspections]
    directory = run_directory.create(tiny_config(run=stem, preset=names[0]))
    presets = [
        PresetInfo(name=name, summary="", teaches="", source="built-in", mesh={}, fits=True, problems=[])
        for name in names
    ]
    events: list[AnyEvent] = [
        EngineStarted(protocol=1, pid=1, config=directory.config),
        msgspec.structs.replace(READY, devices=first.devices, flops_per_step=first.flops_per_step, presets=presets),
        TrainingStarted(preset=names[0]),
    ]
    for before, inspection in zip([None, *names], inspections, strict=False):
        events += [inspection.compiled, inspection.inspected]
        if before:
            events.append(switch(before, inspection.compiled.preset))
        events.append(StepsDone(step=1, losses=[1.0], step_seconds=[0.1], input_wait_seconds=0.0))
    events.append(EngineStopped(step=1, reason="stopped"))
    lines = (encode_json(msgspec.structs.replace(event, seq=seq)) for seq, event in enumerate(events, 1))
    directory.events.write_bytes(b"\n".join(lines) + b"\n")
    return directory


def switch(before: str, after: str) -> Switched:
    return Switched(
        from_preset=before,
        to_preset=after,
        step=1,
        arrays=1,
        bytes_moved=0,
        stall_seconds=0.1,
        compile_seconds=0.0,
        digests_equal=True,
        loss_before=1.0,
    )


@pytest.fixture(scope="module")
def described() -> list[Inspection]:
    return inspections(TINY, 8, "dp", "pitfall-first-dim", "fsdp-tp2")


def over(
    directory: RunDirectory,
    scenario: Callable[[ShardtuiApp, Pilot], object],
    size: tuple[int, int] = (140, 40),
) -> None:
    async def run() -> None:
        async with shown(directory, False, size) as (app, pilot):
            await until(lambda: app.state.is_over, "the history")
            await scenario(app, pilot)  # type: ignore[misc]

    asyncio.run(run())


def table(app: ShardtuiApp) -> DataTable:
    return app.screen.query_one(DataTable)


def names(app: ShardtuiApp) -> list[str]:
    """The first column, without marks."""
    return [str(table(app).get_row_at(row)[0]).strip(" ●▾▸") for row in range(table(app).row_count)]


async def press(pilot: Pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause(0.1)


def test_arrays_are_sorted_filtered_and_folded(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "2")
        assert len(names(app)) == 86
        assert names(app)[0] == "embedding", "the largest that stands twice under fsdp-tp2"
        assert "of 86 arrays, most wasted first" in screen_text(app)
        await press(pilot, "o")
        assert names(app)[0] == "token.table", "the largest on a device"
        await press(pilot, "o")
        assert names(app) == sorted(names(app))
        await press(pilot, "slash", *"grad mlp_model", "enter")
        assert set(names(app)) == {f"grad.blocks.mlp.{name}" for name in ("up.kernel", "up.bias", "down.kernel")}
        await press(pilot, "t")
        assert names(app) == ["gradients", "grad", "blocks", "mlp", "down", "kernel", "up", "bias", "kernel"]
        table(app).move_cursor(row=names(app).index("mlp"))
        await press(pilot, "enter")
        assert names(app) == ["gradients", "grad", "blocks", "mlp"]
        await press(pilot, "escape", "t")
        assert len(names(app)) == 86
        assert not app.screen.query_one(Input).display

    over(record(described, "arrays"), scenario)


def test_a_switch_marks_what_it_laid_out_otherwise(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "2")
        marked = {row.strip(" ●") for row in map(str, table(app).get_column_at(0)) if "●" in row}
        assert {"blocks.mlp.up.kernel", "logits", "grad.norm.scale"} <= marked
        assert not {"step", "seed"} & marked
        await press(pilot, "4")
        flows = [line.plain for line in app.screen.query_one(Flows).lines]
        assert any("all-gather" in line and "● pitfall-first-dim: none" in line for line in flows)
        await press(pilot, "c", "c")
        assert app.screen.query_one(Flows).border_subtitle == "beside dp"
        assert any("● dp: " in line.plain for line in app.screen.query_one(Flows).lines)

    over(record(described, "marks"), scenario)


def test_the_pane_turns_steps_and_follows(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "2", "slash", *"blocks.attention.qkv activation", "enter")
        pane = app.screen.query_one(ShardingPane)
        assert pane.subject
        assert pane.subject.array.name == "blocks.attention.qkv"
        assert "batch ↓  heads →   seq 0…15, qkv 0…2, head_dim 0…3 whole" in pane.lines[0].plain
        await press(pilot, "tab", "tab", "down", "right")
        pane.focus()
        await press(pilot, "down", "right")
        assert "batch 2…3, heads 4…7 · " in pane.lines[-1].plain
        assert "on CPU 3" in pane.lines[-1].plain
        assert any("›CPU 3‹" in line.plain for line in pane.lines)
        await press(pilot, "r")
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
        assert any("◆CPU 5" in line.plain for line in app.screen.query_one(MeshPane).lines)

    over(record(described, "pane"), scenario)


def test_mesh_tells_of_a_device(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "3", "down", "down", "right")
        details = "\n".join(line.plain for line in app.screen.query_one(DeviceDetails).lines)
        assert app.screen.query_one(DeviceDetails).border_title == "device 5"
        assert "fsdp            2 of 4, with 1, 3, 5, 7" in details
        assert "model           1 of 2, with 4, 5" in details
        await press(pilot, "f", "2")
        assert "device 5 holds" in screen_text(app)
        await press(pilot, "3", "f")
        assert app.state.followed is None

    over(record(described, "mesh"), scenario)


def test_a_finding_leads_to_its_array(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "5")
        text = screen_text(app)
        assert "S105 redundant-compute" in text
        assert "FLOP of matrix products for" in text
        options = app.screen.query_one(OptionList)
        options.highlighted = [finding.code for finding in app.state.findings].index("S106")
        await press(pilot, "enter")
        await until(lambda: app.current_mode == "arrays", "the Arrays view")
        pane = app.screen.query_one(ShardingPane)
        await until(lambda: pane.subject and pane.subject.array.name == "blocks.attention.out.kernel", "the array")

    over(record(described[:2], "finding"), scenario)


def test_no_findings_are_so_far_until_the_compiler_was_asked(home: Path, described: list[Inspection]) -> None:
    """Also where the answer finds nothing more."""
    told = msgspec.structs.replace(described[0], flops_per_step=1e15)
    directory = record([told], "asked")
    lines = [line for line in directory.events.read_bytes().splitlines(True) if b'"PresetInspected"' not in line]
    directory.events.write_bytes(b"".join(lines))

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "5")
        assert "no findings so far" in screen_text(app)
        app.post_message(EventsArrived([told.inspected]))
        await pilot.pause(0.1)
        assert "✓ no findings" in screen_text(app)
        assert "so far" not in screen_text(app)

    over(directory, scenario)


def test_views_are_exported(home: Path, described: list[Inspection], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "4", "e")
        assert "all-gather" in (home / "export-traffic-1.txt").read_text()
        svg = (home / "export-traffic-1.svg").read_text()
        assert svg.startswith("<svg")
        assert "@font-face" not in svg
        (home / "export-mesh-1.svg").mkdir()
        await press(pilot, "3", "e")
        assert app.current_mode == "mesh"
        assert not (home / "export-mesh-1.txt").exists(), "half of an export is left"

    over(record(described, "export"), scenario)


HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "[bold red]markup[/] [/] [@click=app.quit]x[/]",
    "x" * 300,
    "漢字 العربية ไทย",
    "a\u202eb\u200bc\x9bd\ne",
)


def test_hostile_names_reach_the_screen_as_text(home: Path, described: list[Inspection]) -> None:
    inspection = described[1]
    compiled, inspected = inspection.compiled, inspection.inspected
    arrays = [msgspec.structs.replace(a, name=name) for a, name in zip(compiled.arrays, HOSTILE, strict=False)]
    activations = [msgspec.structs.replace(a, logical_axes=[HOSTILE[0]] * len(a.shape)) for a in inspected.arrays]
    assert compiled.collectives
    collectives = [
        msgspec.structs.replace(c, op_name=name, source=f"/home/{name}.py:1")
        for c, name in zip(compiled.collectives, HOSTILE, strict=False)
    ]
    hostile = msgspec.structs.replace(
        inspection,
        compiled=msgspec.structs.replace(compiled, arrays=arrays, collectives=collectives),
        inspected=msgspec.structs.replace(inspected, arrays=activations, problem=HOSTILE[0]),
    )

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        seen = ""
        for keys in (["2"], ["o", "o"], *[["down"]] * 6, ["t"], ["4"], *[["down"]] * 5, ["5"], ["3"], ["0"], ["1"]):
            await press(pilot, *keys)
            text = screen_text(app)
            assert not {c for c in text if c in "\x1b\x9b\u202e\u200b"}
            seen += text
        assert "\\x1b[31mred\\x1b[0m" in seen
        assert "[bold red]markup[/] [/] [@click=app.quit]x[/]" in seen
        assert "漢字 العربية ไทย" in seen
        assert "a\\u202eb\\u200bc\\x9bd e" in seen
        assert "x" * 60 in seen

    over(record([hostile], "hostile"), scenario, size=(200, 50))


def test_512_devices_and_48_layers(home: Path) -> None:
    (wide,) = inspections(WIDE, 512, "fsdp-tp2")
    assert len(wide.compiled.mesh.device_ids) == 512
    kernel = next(array for array in wide.compiled.arrays if array.name == "blocks.mlp.up.kernel")
    assert kernel.shape == [48, 512, 512]
    assert {info.count for info in wide.compiled.collectives or ()} >= {1, 48}

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "2")
        assert len(names(app)) == 86
        await press(pilot, "slash", *"blocks.mlp.up.kernel parameter", "enter")
        pane = app.screen.query_one(ShardingPane)
        pane.focus()
        await pilot.pause()
        assert any("fsdp 0…" in line.plain and "model 0" in line.plain for line in pane.lines)
        assert "shards" in pane.lines[-1].plain
        await press(pilot, "z", "down", "right")
        assert "embed 2…3, mlp 256…511" in pane.lines[-1].plain
        assert "CPU 3" in pane.lines[-1].plain
        pane.action_move(300, 0)
        await pilot.pause()
        assert "embed 510…511" in pane.lines[-1].plain
        await press(pilot, "3")
        assert app.screen.query_one(MeshPane).lines

    over(record([wide], "wide"), scenario)
