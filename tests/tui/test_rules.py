"""Rules edited in the UI of a real engine: previewed, applied, saved, and kept by the next engine."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import ArrayInfo, DeviceInfo, MeshInfo, PresetInfo, Preview
from shardtui.engine.wire.events import EngineReady, EngineStarted, EngineStopped, PresetPreviewed
from shardtui.engine.wire.framing import encode_json
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.rules import RulesScreen
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.clean import clean
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.rule_list import Row, RuleList
from textual.pilot import Pilot

from ..conftest import READY, SETTINGS, tiny_config
from .test_app import shown, until
from .test_cli import run


async def put_on(pilot: Pilot, row: Row) -> None:
    pilot.app.screen.query_one(RuleList).put_cursor_on(row)
    await pilot.pause()


HOSTILE = "\x1b[31m[/]\u202e"


def ready(*presets: PresetInfo) -> EngineReady:
    devices = [DeviceInfo(number, "cpu", "cpu", 0) for number in range(8)]
    return msgspec.structs.replace(READY, devices=devices, memory_limit=10**6, presets=list(presets))


def layout(mesh: dict[str, int], spec: list[str], count: int) -> Preview:
    arrays = [
        ArrayInfo(
            name=f"{HOSTILE}{number}",
            kind="parameter",
            shape=[64, 64],
            dtype="float32",
            bytes=16384,
            logical_axes=[HOSTILE, "mlp"],
            spec=[spec, []],
            compiled_spec=[spec, []],
            reasons=["", ""],
        )
        for number in range(count)
    ]
    held = count * 16384 // 8
    return Preview(
        problems=[], mesh=MeshInfo(mesh, list(range(8))), arrays=arrays, argument_bytes=held, peak_bytes=2 * held
    )


def test_hundreds_of_changed_arrays_with_hostile_names_are_listed(home: Path) -> None:
    folder = home / "config/shardtui/presets/parallelism"
    folder.mkdir(parents=True)
    (folder / "odd.toml").write_text(
        '[mesh]\nfsdp = 8\n[rules]\n"\\u001b[31m[/]" = "fsdp"\n[overrides]\n"\\u202e*" = []\n'
    )
    odd = PresetInfo(
        name="odd", summary="", teaches="", source=str(folder / "odd.toml"), mesh={"fsdp": 8}, fits=True, problems=[]
    )
    directory = run_directory.create(tiny_config(preset="odd"))
    events = [
        EngineStarted(protocol=1, pid=1, config=directory.config),
        ready(odd),
        EngineStopped(step=0, reason="stopped"),
    ]
    lines = (encode_json(msgspec.structs.replace(event, seq=seq)) for seq, event in enumerate(events, 1))
    directory.events.write_bytes(b"\n".join(lines) + b"\n")

    async def scenario() -> None:
        async with shown(directory, False, (80, 24)) as (app, pilot):
            await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
            await pilot.press("8")
            await until(lambda: "no preview" in screen_text(app), "the view")
            assert isinstance(app.screen, RulesScreen)
            previewed = PresetPreviewed(
                number=app.screen.request.number,
                before=layout({"fsdp": 8}, ["fsdp"], 600),
                after=layout({"fsdp": 8}, [], 600),
            )
            app.post_message(EventsArrived([clean(previewed)]))
            await until(lambda: "600 of 600 arrays change" in screen_text(app), "the changes")
            await until(lambda: "a device has 1 MB" in screen_text(app), "the memory that the peak exceeds")
            await pilot.press("tab", "end")
            await until(lambda: "\\x1b[31m[/]\\u202e599" in screen_text(app), "the last array")
            assert "\\x1b[31m[/]" in screen_text(app)
            assert screen_text(app).replace("\n", "").isprintable()
            await pilot.press("shift+tab", "end", "left", "enter", "minus", "u", "a", "ctrl+s")
            await pilot.pause()
            assert app.current_mode == "rules"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_draft_is_previewed_saved_applied_and_resumed(home: Path) -> None:
    directory = run_directory.create(tiny_config(preset="fsdp"))
    mine = home / "config/shardtui/presets/parallelism/mine.toml"

    async def scenario() -> None:
        async with shown(directory, True, (140, 40)) as (app, pilot):

            def says(text: str) -> bool:
                return text in screen_text(app)

            await until(lambda: app.state.step >= 1, "steps")
            await until(lambda: app.screen.query(PresetList), "the presets")
            presets = app.screen.query_one(PresetList)
            presets.highlighted = presets.get_option_index("fsdp")
            await pilot.press("8")
            await until(lambda: says("none of 54 arrays changes"), "a preview without changes")
            await put_on(pilot, Row("rule", "embed"))
            await pilot.press("left")
            await until(lambda: says("42 of 54 arrays change"), "the preview of the change")
            assert says("● embed            unsharded")
            assert says("[layers, embed_fsdp, mlp] → [layers, embed, mlp]")
            await put_on(pilot, Row("rule", "layers"))
            await pilot.press("right", "ctrl+s")
            await until(lambda: says("invalid: "), "the problem of the rule")
            await until(lambda: app._notifications, "a notice that an invalid preset is not saved")
            assert not mine.parent.exists()
            await pilot.press("ctrl+s")
            assert not mine.parent.exists()
            await pilot.press("escape")
            await until(lambda: app.current_mode == "watch", "the Watch view")
            fitting = {info.name for info in app.state.ready.presets if info.fits}
            assert fitting == {id for id in presets.shown if not id.startswith("# ")}

            await pilot.press("8", "plus", *"model", "enter", "right")
            await put_on(pilot, Row("rule", "mlp"))
            await pilot.press("enter", *"modle", "enter")
            await until(lambda: says("no mesh axis 'modle': the mesh has fsdp, model"), "the problem")
            assert says("✗ mlp              modle")
            await pilot.press("a")
            await pilot.pause(0.2)
            assert app.current_mode == "rules", "an invalid draft is not applied"
            await pilot.press("enter", *"model", "enter")
            await until(lambda: says("sent model"), "the costs")
            await put_on(pilot, Row("name", "name"))
            assert says("● name             fsdp-edited")
            await pilot.press("enter", *"mine", "enter", "ctrl+s")
            await until(mine.exists, "the file")
            assert load_preset("mine").rules["mlp"] == ("model",)
            await pilot.press("ctrl+s")
            await until(lambda: app.screen.query("#yes"), "the question")
            await pilot.press("n", "enter", "delete", "enter", "a")
            await until(lambda: app.state.preset == "fsdp-edited", "the switch")
            assert app.state.switches[-1].digests_equal
            assert app.screen.query_one(PresetList).get_option("fsdp-edited")

            await pilot.press("w")
            await until(
                lambda: app.state.newest and app.state.newest.preset.endswith("fsdp-edited.toml"), "a checkpoint"
            )
            app.client.kill_engine()
            await until(lambda: app.state.phase is Phase.LOST, "the loss")
            await pilot.press("8", "down", "right", "a")
            await until(lambda: says("no preview"), "the notice that there is no engine")
            assert app.current_mode == "rules"
            await pilot.press("r")
            await until(lambda: app.state.phase is Phase.TRAINING, "another engine")
            assert app.state.preset == "fsdp-edited"
            await until(lambda: says("arrays change"), "the preview of the other engine")
            assert "PresetPreviewed" not in directory.events.read_text()
            await pilot.press("escape", "x")
            await until(lambda: app.screen.query("#yes"), "the question")
            await pilot.press("y")
            await until(lambda: app.state.phase is Phase.STOPPED, "the end")

    asyncio.run(scenario())
    listed = json.loads(run("presets", "--json", *SETTINGS).stdout)["presets"]
    (info,) = [info for info in listed if info["name"] == "mine"]
    assert info["fits"]
    assert info["mesh"] == {"fsdp": 4, "model": 2}
    assert info["summary"] == "fsdp with model = 2, mlp = model"
