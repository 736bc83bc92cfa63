"""Keys of the user's own, from keys.toml."""

import asyncio
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.keymap import clashes, every_binding, load_keymap
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import PresetList

from ..recorded import recorded_run
from .test_app import until


def written(folder: Path, text: str) -> Path:
    path = folder / "keys.toml"
    path.write_text(text)
    return path


def test_ids_are_unique_but_for_keys_of_one_action() -> None:
    actions: dict[str, set[str]] = {}
    for _, binding in every_binding():
        if binding.id:
            actions.setdefault(binding.id, set()).add(binding.action)
    assert {id: found for id, found in actions.items() if len(found) > 1} == {}
    assert {"checkpoints", "arrays.group", "sharding.rows", "table.filter"} <= set(actions)


def test_a_letter_has_one_meaning() -> None:
    """Keys of a view that have another meaning everywhere; `r` and `space` depend on the run's state."""
    assert [clash for clash in clashes({}) if clash[0] not in ("r", "space")] == []


def test_a_view_takes_the_users_keys(home: Path) -> None:
    keymap = load_keymap(written(home, '"arrays.group" = "t"\ndetach = "ctrl+d"\nhelp = "f1"\n'))

    async def scenario() -> None:
        app = ShardtuiApp(EngineClient(recorded_run()), starts=False, keymap=keymap)
        async with app.run_test(size=(140, 40)) as pilot:
            await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
            await pilot.press("2")
            keys = {binding.id: key for key, (_, binding, *_) in app.screen.active_bindings.items()}
            assert (keys["arrays.group"], keys["detach"]) == ("t", "ctrl+d")
            assert screen_text(app).splitlines()[-1].endswith("f1 Help  ^p Palette")
            await pilot.press("d", "ctrl+d")
        assert app.return_code == 0

    asyncio.run(scenario())


def test_every_problem_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path, 'checkpoint = "C"\nstep = 5\npause = "spaace"\n"arrays.follow" = "g"\n"log.filter" = "s"\n'
    )
    with pytest.raises(UserError) as caught:
        load_keymap(path)
    problems = [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]
    assert problems[0].startswith("checkpoint: unknown key binding: did you mean checkpoints? the bindings are ")
    assert problems[1].startswith("step = 5: not a key, such as")
    assert problems[2].startswith("pause = 'spaace': not a key")
    assert set(problems[3:]) == {"g: both arrays.follow and arrays.group", "s: both log.filter and step"}
