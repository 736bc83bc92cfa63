"""Makes the pictures of the README from a real run: `python docs/pictures.py` (about three minutes idle)."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from movie import movie
from shardtui import engine
from shardtui.engine.spec.config import Restart, RunConfig
from shardtui.engine.spec.model_choice import load_model, user_model
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.screens.plan import PlanScreen
from shardtui.tui.terminal.export import screen_svg
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.rule_list import Row, RuleList
from textual.pilot import Pilot

DOCS = Path(__file__).parent
SWITCHES = ("fsdp", "fsdp-tp2")
STEPS_BETWEEN = 50
FRAME_SECONDS = 2.0
ARRAY = "blocks.mlp.up.kernel"
PITFALL = "pitfall-first-dim"


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.1)


def picture(app: ShardtuiApp) -> str:
    """Without the path of the machine that it was made on."""
    return screen_svg(app).replace(str(Path(engine.__file__).parents[1]), "~/shardtui")


def save(app: ShardtuiApp, name: str) -> None:
    (DOCS / name).write_text(picture(app))


async def switch_to(app: ShardtuiApp, pilot: Pilot[None], preset: str) -> None:
    presets = app.screen.query_one(PresetList)
    if preset not in presets.shown:  # its group is folded
        presets.highlighted = presets.get_option_index("# pitfalls")
        await pilot.press("enter")
        await until(lambda: preset in presets.shown)
    presets.highlighted = presets.get_option_index(preset)
    await pilot.press("enter")
    await until(lambda: app.state.preset == preset)


async def steps(app: ShardtuiApp) -> None:
    goal = app.state.step + STEPS_BETWEEN
    await until(lambda: app.state.step >= goal)


async def edit(pilot: Pilot[None]) -> None:
    """`model` twice as wide, and the token table not split over it."""
    rules = pilot.app.screen.query_one(RuleList)
    for row, keys in ((Row("axis", "model"), ["right"]), (Row("rule", "vocab"), ["left", "left"])):
        rules.put_cursor_on(row.id)
        await pilot.press(*keys)
    await pilot.pause(2)


async def pictures(client: EngineClient) -> None:
    """Saves a picture of each view."""
    app = ShardtuiApp(client)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(lambda: bool(app.state.preset) and bool(app.screen.query(PresetList)))
        await steps(app)
        save(app, "watch.svg")
        await pilot.press("2")
        await until(lambda: app.state.inspection is not None)
        await pilot.pause(1)
        table = app.screen.query_one("DataTable")
        table.move_cursor(row=table.get_row_index(ARRAY))
        await pilot.press("tab", "right", "f")
        await pilot.pause(1)
        save(app, "arrays.svg")
        await pilot.press("n", "M")
        await until(lambda: app.state.numbers.newest is not None and not app.state.numbers.is_requested)
        await pilot.pause(1)
        save(app, "numbers.svg")
        for key, name in (("3", "mesh.svg"), ("4", "traffic.svg")):
            await pilot.press(key)
            await pilot.pause(1)
            save(app, name)
        await pilot.press("p")
        await until(lambda: app.current_mode == "time")
        app.clear_notifications()
        await pilot.pause(1)
        save(app, "time.svg")
        await pilot.press("7")
        await until(lambda: isinstance(app.screen, PlanScreen) and app.screen.status.startswith("traced only"))
        await pilot.pause(1)
        save(app, "plan.svg")
        await pilot.press("1", "8")
        await pilot.pause(1)
        await edit(pilot)
        await until(lambda: bool(app.state.previewed and app.state.previewed.after.peak_bytes))
        await pilot.pause(1)
        save(app, "rules.svg")
        await pilot.press("escape")
        await pilot.pause(1)
        await switch_to(app, pilot, PITFALL)
        await pilot.press("5")
        await until(lambda: app.state.inspection is not None)
        await pilot.pause(1)
        save(app, "lint.svg")
        await app.client.send(Stop())
        await until(lambda: app.state.is_over)


async def filmed_switch(app: ShardtuiApp, pilot: Pilot[None], preset: str) -> list[str]:
    """Before the key, while the target is compiled, and some steps after the switch."""
    presets = app.screen.query_one(PresetList)
    presets.highlighted = presets.get_option_index(preset)
    await pilot.pause(0.2)
    frames = [picture(app)]
    await pilot.press("enter")
    await until(lambda: app.state.pending is not None or app.state.preset == preset)
    await pilot.pause(1)
    frames.append(picture(app))
    await until(lambda: app.state.preset == preset)
    await steps(app)
    return [*frames, picture(app)]


async def film(client: EngineClient) -> None:
    """Saves the moving picture: a run that starts, is switched twice, and shows its arrays and traffic."""
    app = ShardtuiApp(client, Restart())
    frames: list[str] = []
    async with app.run_test(size=(100, 28)) as pilot:
        await until(lambda: app.state.step >= STEPS_BETWEEN)
        frames.append(picture(app))
        for preset in SWITCHES:
            frames += await filmed_switch(app, pilot, preset)
        for key in ("2", "4"):
            await pilot.press(key)
            await pilot.pause(1)
            frames.append(picture(app))
    (DOCS / "demo.svg").write_text(movie(frames, FRAME_SECONDS))


async def explained(client: EngineClient) -> None:
    """Saves a picture of the first non-finite value, in a small terminal."""
    app = ShardtuiApp(client, Restart())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.state.nonfinite is not None and app.state.is_paused)
        app.clear_notifications()
        await pilot.press("N")
        await pilot.pause(1)
        save(app, "nonfinite.svg")
        await app.client.send(Stop())
        await until(lambda: app.state.is_over)


async def main() -> None:
    user, training = user_model(f"{DOCS}/examples/goes_wrong.py:Regression", ("batch_size=16",))
    wrong = RunConfig(run="goes-wrong", model_name="goes_wrong.py", model=user, training=training, preset="dp")
    await explained(EngineClient(run_directory.create(wrong)))
    model = load_model("nano")
    config = RunConfig(run="nano-1", model_name="nano", model=model.model, training=model.training, preset="dp")
    directory = run_directory.create(config)
    await film(EngineClient(directory))
    await pictures(EngineClient(directory))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_STATE_HOME": folder, "XDG_CACHE_HOME": folder, "SHARDTUI_RUNTIME_DIR": f"{folder}/run"}
        asyncio.run(main())
