"""Rules edited in the UI of a real engine: previewed, applied, saved, and kept by the next engine."""

import json
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import ArrayInfo, DeviceInfo, MeshInfo, Preview
from shardtui.engine.wire.events import EngineStopped, PresetPreviewed
from shardtui.tui.messages import EventsArrived
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.clean import clean
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.rule_list import Row
from textual.pilot import Pilot

from ..conftest import READY, SETTINGS, tiny_config
from ..recorded import preset_info, record, started
from .test_app import answer, finished, listed_presets, shown, until
from .test_cli import run
from .test_views import press


async def put_on(pilot: Pilot, row: Row) -> None:
    pilot.app.screen.query_one("RuleList").put_cursor_on(row.id)
    await pilot.pause()


HOSTILE = "\x1b[31m[/]\u202e"


def layout(mesh: dict[str, int], spec: list[str], count: int) -> Preview:
    about = {"kind": "parameter", "shape": [64, 64], "dtype": "float32", "bytes": 16384, "reasons": ["", ""]}
    about |= {"logical_axes": [HOSTILE, "mlp"], "spec": [spec, []], "compiled_spec": [spec, []]}
    arrays = [ArrayInfo(name=f"{HOSTILE}{number}", **about) for number in range(count)]
    mesh_info, held = MeshInfo(mesh, list(range(8))), count * 16384 // 8
    return Preview(problems=[], mesh=mesh_info, arrays=arrays, argument_bytes=held, peak_bytes=2 * held)


async def test_hundreds_of_changed_arrays_with_hostile_names_are_listed(home: Path) -> None:
    folder = home / "config/shardtui/presets/parallelism"
    folder.mkdir(parents=True)
    (folder / "odd.toml").write_text(
        '[mesh]\nfsdp = 8\n[rules]\n"\\u001b[31m[/]" = "fsdp"\n[overrides]\n"\\u202e*" = []\n'
    )
    odd = preset_info("odd", source=str(folder / "odd.toml"), mesh={"fsdp": 8})
    devices = [DeviceInfo(number, "cpu", "cpu", 0) for number in range(8)]
    ready = msgspec.structs.replace(READY, devices=devices, memory_limit=10**6, presets=[odd])
    directory = run_directory.create(tiny_config(preset="odd"))
    record(directory, started(config=directory.config), ready, EngineStopped(step=0, reason="stopped"))
    async with finished(directory, (80, 24)) as (app, pilot):
        await pilot.press("8")
        await until(lambda: "no preview" in screen_text(app), "the view")
        before, after = (layout({"fsdp": 8}, spec, 600) for spec in (["fsdp"], []))
        previewed = PresetPreviewed(number=app.screen.request.number, before=before, after=after)
        app.post_message(EventsArrived([clean(previewed)]))
        await until(lambda: "600 of 600 arrays change" in screen_text(app), "the changes")
        await until(lambda: "a device has 1 MB" in screen_text(app), "the memory that the peak exceeds")
        await pilot.resize_terminal(100, 24)
        await until(lambda: app.screen.query_one("Changes").size.width > 40, "the new width")
        assert app.screen.request.answer, "a new size asks for no new preview"
        assert "600 of 600 arrays change" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await pilot.press("tab", "end")
        await until(lambda: "\\x1b[31m[/]\\u202e599" in screen_text(app), "the last array")
        assert "\\x1b[31m[/]" in screen_text(app)
        assert screen_text(app).replace("\n", "").isprintable()
        await press(pilot, "shift+tab", "end", "left", "enter", "minus", "u", "a", "ctrl+s")
        assert app.current_mode == "rules"


@pytest.mark.slow
async def test_a_draft_is_previewed_saved_applied_and_resumed(home: Path) -> None:
    directory = run_directory.create(tiny_config(preset="fsdp"))
    mine = home / "config/shardtui/presets/parallelism/mine.toml"
    async with shown(directory, True, (140, 40)) as (app, pilot):

        async def says(*texts: str) -> None:
            await until(lambda: all(text in screen_text(app) for text in texts), ", ".join(texts))

        await until(lambda: app.state.step, "steps")
        presets = await listed_presets(app)
        presets.highlighted = presets.get_option_index("fsdp")
        await pilot.press("8")
        await says("none of 54 arrays changes")
        await put_on(pilot, Row("rule", "embed"))
        await pilot.press("left")
        await says(
            "42 of 54 arrays change", "● embed            unsharded", "[layers, embed@fsdp, mlp] → [layers, embed, mlp]"
        )
        await put_on(pilot, Row("rule", "layers"))
        await pilot.press("right", "ctrl+s")
        await says("invalid: ")
        await until(lambda: app._notifications, "a notice that an invalid preset is not saved")
        await pilot.press("ctrl+s")
        assert not mine.parent.exists()
        await pilot.press("escape")
        await until(lambda: app.current_mode == "watch", "the Watch view")

        await pilot.press("8", "plus", *"model", "enter", "right")
        await put_on(pilot, Row("rule", "mlp"))
        await pilot.press("enter", *"modle", "enter")
        await says("no mesh axis 'modle': the mesh has fsdp, model", "✗ mlp              modle")
        await pilot.press("a")
        await pilot.pause(0.2)
        assert app.current_mode == "rules", "an invalid draft is not applied"
        await pilot.press("enter", *"model", "enter")
        await says("sent model")
        await put_on(pilot, Row("name", "name"))
        await says("● name             fsdp-edited")
        await pilot.press("enter", *"mine", "enter", "ctrl+s")
        await until(mine.exists, "the file")
        assert load_preset("mine").axes("mlp") == ("model",)
        await answer(app, pilot, "ctrl+s", "n")
        await pilot.press("enter", "delete", "enter", "a")
        await until(lambda: app.state.preset == "fsdp-edited", "the switch")
        assert app.state.switches[-1].to_preset == "fsdp-edited"
        assert app.screen.query_one("PresetList").get_option("fsdp-edited")

        await pilot.press("w")
        await until(lambda: app.state.newest and app.state.newest.preset.endswith("fsdp-edited.toml"), "a checkpoint")
        app.client.kill_engine()
        await until(lambda: app.state.phase is Phase.LOST, "the loss")
        await pilot.press("8", "down", "right", "a")
        await says("no preview")
        assert app.current_mode == "rules"
        await pilot.press("r")
        await until(lambda: app.state.phase is Phase.TRAINING, "another engine")
        assert app.state.preset == "fsdp-edited"
        await says("arrays change")
        assert "PresetPreviewed" not in directory.events.read_text()
        await pilot.press("escape")
        await answer(app, pilot, "x")
        await until(lambda: app.state.phase is Phase.STOPPED, "the end")
    listed = json.loads(run("presets", "--json", *SETTINGS).stdout)["presets"]
    info = next(info for info in listed if info["name"] == "mine")
    assert (info["fits"], info["mesh"]) == (True, {"fsdp": 4, "model": 2})
    assert info["summary"] == "fsdp with model = 2, mlp = model"
