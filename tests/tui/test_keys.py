"""Keys and clicks that once crashed the UI or had unwanted effects, and keys of the user's own."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from rich.style import Style
from shardtui.engine.base.user_error import UserError
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import DeviceInfo
from shardtui.engine.wire.events import CheckpointsKept, PresetPreviewed
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.app_keys import NAMES
from shardtui.tui.keymap import clashes, every_binding, load_keymap
from shardtui.tui.messages import EventsArrived
from shardtui.tui.palette import Palette
from shardtui.tui.screens.checkpoints import CheckpointsScreen
from shardtui.tui.screens.confirm import Confirm
from shardtui.tui.screens.rules import RulesScreen
from shardtui.tui.screens.run_screen import Always
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import PresetList
from textual.binding import BindingsMap
from textual.command import CommandList
from textual.events import Click, MouseDown, Resize
from textual.geometry import Size
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets._toast import Toast
from textual.widgets.markdown import MarkdownBlock

from ..conftest import READY, tiny_config
from ..recorded import preset_info, record, recorded_run, started
from .test_app import finished, listed_presets, shown, until
from .test_rules import layout


@asynccontextmanager
async def play() -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # as Textual's `run` does
    async with finished(recorded_run(), (80, 24)) as played:
        yield played


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Even where the event loop does not come round any more: what keeps it busy is interrupted until it ends."""
    rung: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        rung.append(number)
        pytest.fail(f"busy for {seconds} s")  # no Exception, which Textual would take and go on

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not rung, f"busy for {seconds} s"


@pytest.mark.parametrize("page", ["page_up", "page_down"])
async def test_page_keys_work_before_the_palette_has_laid_out_its_matches(home: Path, page: str) -> None:
    """Keys come as fast as a terminal sends them; the page action runs between the search and the layout."""
    async with play() as (app, pilot):
        for key in ("ctrl+p", "n", "5"):
            app.simulate_key(key)
        while not (isinstance(app.screen, Palette) and app.screen.query(CommandList)):
            await asyncio.sleep(0)
        while not app.screen.query_one(CommandList).option_count:
            await asyncio.sleep(0)
        await app.run_action(f"command_list('{page}')", app.screen)
        await pilot.press("pageup", "pagedown", *"page", "pageup", "pagedown", "escape", "escape")
        await until(lambda: not isinstance(app.screen, Palette), "the view")


async def test_a_click_selects_and_a_double_click_acts(home: Path) -> None:
    async with play() as (app, pilot):
        listed = app.screen.query_one(PresetList)
        await until(lambda: listed.size.height > 4 and listed.option_count > 4, "the presets, drawn")
        before = listed.highlighted_preset
        await pilot.click(PresetList, offset=(6, 3))
        await until(lambda: listed.highlighted_preset != before, "the cursor under the mouse")
        assert not app._notifications, "a click requests no switch"
        await pilot.click(PresetList, offset=(6, 3))
        await pilot.click(PresetList, offset=(6, 3), times=2)
        await until(lambda: app._notifications, "the notice that there is no engine")


async def test_a_palette_may_lose_its_view_or_be_closed_at_any_moment(home: Path) -> None:
    async with play() as (app, pilot):
        app.action_command_palette()
        app.switch_mode("log")  # before it is mounted
        await until(lambda: isinstance(app.screen, Palette) and app.screen.is_mounted, "the palette")
        await pilot.press("escape", "0")
        await until(lambda: app.current_mode == "log", "the view")
        app.action_command_palette()
        app.screen.dismiss()  # before it is mounted
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(app.screen, Palette) and app.screen.query_one(CommandList), "the next one")
        await pilot.press(*"zzz")
        palette = app.screen
        await until(lambda: palette._no_matches_timer, "the search")
        await pilot.press("escape", "escape")  # before it shows that nothing matches
        assert not palette.is_active
        assert palette._no_matches_timer is None


@pytest.mark.core
async def test_every_key_may_come_before_a_run_has_said_anything(home: Path) -> None:
    """None ends the UI."""
    async with shown(run_directory.create(tiny_config())) as (app, pilot):
        for name in NAMES:
            await app.switch_mode(name)
            await pilot.pause()
            own = [node for node in app.screen.walk_children() if type(node).__module__.startswith("shardtui")]
            for node in [app.screen, *own]:
                for bindings in BindingsMap(type(node).BINDINGS).key_to_bindings.values():
                    for binding in bindings:
                        await app.run_action(binding.action, node)
                        await pilot.pause()
        assert app.is_running


async def test_presets_may_all_be_folded_before_the_first_step(home: Path) -> None:
    presets = [preset_info("dp", fits=False), preset_info("pitfall-first-dim")]
    directory = run_directory.create(tiny_config())
    ready = msgspec.structs.replace(READY, devices=[DeviceInfo(0, "cpu", "cpu", 0)], presets=presets)
    record(directory, started(config=directory.config), ready)
    async with shown(directory) as (app, _):
        assert list((await listed_presets(app)).shown) == ["# pitfalls", "# do not fit"]


async def test_a_question_that_comes_with_an_answer(home: Path) -> None:
    """`ctrl+s` before the engine has said what would follow: its answer brings the question whether to replace."""
    async with play() as (app, pilot):
        await pilot.press("8")
        rules = app.screen
        assert isinstance(rules, RulesScreen) and rules.draft
        draft = rules.draft
        rules.request.when_answered(lambda _: rules.save(draft))
        same = layout({"data": 8}, ["data"], 1)
        app.post_message(EventsArrived([PresetPreviewed(number=rules.request.number, before=same, after=same)]))
        await until(lambda: isinstance(app.screen, Confirm), "the question")


async def test_two_sizes_in_a_burst(home: Path) -> None:
    """A screen that follows both for ever takes up nothing else."""
    async with play() as (app, pilot):
        await pilot.press("8")
        await until(lambda: isinstance(app.screen, RulesScreen) and app.screen.query("FooterKey"), "the view")
        screen = app.screen
        with at_most(seconds=20):
            for size in (Size(60, 20), Size(140, 40)):
                screen.post_message(Resize(size, size))
                screen.call_later(lambda: None)
            await pilot.pause()
        assert screen.size == app.size


async def test_a_notice_may_expire_before_it_is_drawn(home: Path) -> None:
    """With a timer that is already due, Textual would no longer react to keys."""
    async with play() as (app, _):
        app.notify("soon over", timeout=600)
        await until(lambda: len(app._notifications), "the notice")
        notice = next(iter(app._notifications))
        notice.timeout = 0
        assert notice.has_expired
        toast = Toast(notice)
        assert toast._timeout > 0
        await app.screen.mount(toast)
        await until(lambda: not toast.is_attached, "its end on the screen")


@pytest.mark.parametrize("kind", [PresetList, CommandList])
async def test_a_click_on_a_removed_option_does_nothing(home: Path, kind: type[OptionList]) -> None:
    """The option is removed after the click, but before the list receives it."""
    async with play() as (app, pilot):
        if kind is CommandList:
            await pilot.press("ctrl+p")
        await until(lambda: app.screen.query(kind) and app.screen.query_one(kind).option_count, "options")
        listed = app.screen.query_one(kind)
        x, y = listed.content_region.offset
        click = Click(listed, 1, 1, 0, 0, 1, False, False, False, x, y, Style(meta={"option": listed.option_count}))
        listed.post_message(click)
        await pilot.pause()
        assert not isinstance(app.screen, Palette) or app.screen.is_active


async def test_text_typed_for_one_preset_is_not_applied_to_another(home: Path) -> None:
    async with play() as (app, pilot):
        listed = await listed_presets(app)
        listed.highlighted = listed.get_option_index("dp")
        await pilot.press("8", "down", "enter")
        assert isinstance(rules := app.screen, RulesScreen) and rules.prompt.row and rules.prompt.row.key == "data"
        await app.switch_mode("watch")
        listed.highlighted = listed.get_option_index("fsdp")
        await app.action_edit_rules()
        assert rules.draft and rules.draft.origin.name == "fsdp" and not rules.prompt.display
        await pilot.press(*"-1", "enter")
        assert list(rules.draft.preset.mesh) == ["fsdp"]


@pytest.mark.parametrize(("key", "kind"), [("1", Always), ("question_mark", MarkdownBlock)])
async def test_a_click_on_a_removed_widget_that_is_still_drawn_does_nothing(
    home: Path, key: str, kind: type[Widget]
) -> None:
    async with play() as (app, pilot):
        await pilot.press(key)
        await until(lambda: app.screen.query(kind) and app.screen.query(kind).first().region, "the widget")
        removed = app.screen.query(kind).first()
        (x, y), parent = removed.region.offset, removed.parent
        removed._detach()
        app.screen._forward_event(MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y))
        removed._attach(parent)


async def test_a_checkpoint_that_was_deleted_while_it_was_chosen_starts_no_engine(home: Path) -> None:
    async with play() as (app, pilot):
        await pilot.press("c")
        await until(lambda: isinstance(app.screen, CheckpointsScreen), "the checkpoints")
        later = [msgspec.structs.replace(info, step=9) for info in app.state.checkpoints]
        app.post_message(EventsArrived([CheckpointsKept(checkpoints=later)]))
        await until(lambda: app.state.checkpoints == later, "the later checkpoint")
        await pilot.press("enter")
        await until(lambda: app._notifications, "a notice")
        (notice,) = app._notifications
        assert "step 4 is no longer kept" in notice.message
        assert app.state.phase is Phase.STOPPED


async def test_the_bottom_line_is_mounted_while_a_field_takes_letters(home: Path) -> None:
    """`?` is text then, and none of the active bindings."""
    async with play() as (app, pilot):
        await pilot.press("2", "slash")
        await until(lambda: isinstance(app.focused, Input), "the filter")
        await app.screen.mount(again := Always())
        await pilot.pause()
        assert again.lines[0].plain == " ? Help  ^p Palette "


def test_an_id_and_a_letter_have_one_meaning() -> None:
    """Several keys may be of one action; `r` and `space` depend on the run's state."""
    actions: dict[str, set[str]] = {}
    for binding in every_binding():
        if binding.id:
            actions.setdefault(binding.id, set()).add(binding.action)
    assert {id: found for id, found in actions.items() if len(found) > 1} == {}
    assert {"checkpoints", "arrays.group", "sharding.rows", "table.filter"} <= set(actions)
    assert [clash for clash in clashes({}) if clash[0] not in ("r", "space")] == []


async def test_a_view_takes_the_users_keys(home: Path) -> None:
    path = home / "keys.toml"
    path.write_text('"arrays.group" = "t"\ndetach = "ctrl+d"\nhelp = "f1"\n')
    async with finished(recorded_run(), keymap=load_keymap(path)) as (app, pilot):
        await pilot.press("2")
        keys = {binding.id: key for key, (_, binding, *_) in app.screen.active_bindings.items()}
        assert (keys["arrays.group"], keys["detach"]) == ("t", "ctrl+d")
        assert screen_text(app).splitlines()[-1].endswith("f1 Help  ^p Palette")
        await pilot.press("d", "ctrl+d")
    assert app.return_code == 0


def test_every_problem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('checkpoint = "C"\nstep = 5\npause = "spaace"\n"arrays.follow" = "g"\n"log.filter" = "s"\n')
    with pytest.raises(UserError) as caught:
        load_keymap(path)
    problems = [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]
    assert problems[0].startswith("checkpoint: unknown key binding: did you mean checkpoints? the bindings are ")
    assert problems[1].startswith("step = 5: not a key, such as")
    assert problems[2].startswith("pause = 'spaace': not a key")
    assert set(problems[3:]) == {"g: both arrays.follow and arrays.group", "s: both log.filter and step"}
