"""No number is cut, whatever the size of the terminal."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.wire.descriptions import ArrayInfo, CollectiveInfo, MemoryInfo, MeshInfo
from shardtui.engine.wire.events import EngineStopped, MemoryMeasured, PresetCompiled, ProgramsKept
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.lines import NUMBER, cut
from shardtui.tui.widgets.preset_list import PresetList
from textual.content import Content

from ..recorded import recorded_run
from .test_app import shown, until

VIEWS = "12346"


def array(number: int) -> ArrayInfo:
    return ArrayInfo(
        name=f"blocks.layer{number}.mlp.up.kernel",
        kind="parameter",
        shape=[64, 1234 + number],
        dtype="float32",
        bytes=64 * (1234 + number) * 4,
        logical_axes=["embed", "mlp"],
        spec=[["data"], []],
        compiled_spec=[["data"], []],
        reasons=["rule embed → data", "no rule"],
    )


def collective(number: int) -> CollectiveInfo:
    return CollectiveInfo(
        kind="all-reduce",
        axes=["data"],
        group_size=8,
        count=69 + number,
        bytes_each=94_350 + number,
        bytes_per_device=6_510_150,
        dtype="float32",
        shapes=[[64, 1234]],
        op_name="jit(train_step)/transpose(jvp(blocks))/mlp/dot_general",
        source="/home/me/model.py:1234",
        written=False,
    )


COMPILED = PresetCompiled(
    preset="dp",
    compile_seconds=12.3,
    from_cache=False,
    mesh=MeshInfo({"data": 8}, list(range(8))),
    arrays=[array(number) for number in range(4)],
    collectives=[collective(number) for number in range(3)],
    memory=MemoryInfo(
        parameters=3_370_000,
        moments=6_740_000,
        scalars=4,
        batch=1024,
        padding=0,
        arguments=10_111_028,
        outputs=10_111_028,
        aliased=10_111_028,
        temporaries=36_400_000,
        peak=46_511_028,
        peak_source="sum",
    ),
)
KEPT = ProgramsKept(presets=["dp"], bytes=23_400_000, limit_bytes=2_150_000_000)
IN_USE = MemoryMeasured(source="live arrays", bytes_in_use=11_300_000, peak_bytes=None, limit_bytes=None)


def figures_on(app: ShardtuiApp) -> set[str]:
    """Returns the numbers with a decimal point or a unit: a cut number would lose them. The last line has only keys."""
    lines = "\n".join(screen_text(app).splitlines()[:-1])
    found = (match[0].strip(".,") for match in NUMBER.finditer(lines))
    return {text for text in found if "." in text or re.search(r"[a-zA-Zµ%]", text)}


async def seen(size: tuple[int, int]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    stem = f"{size[0]}-{size[1]}"
    ended = EngineStopped(step=4, reason="stopped")  # no losses: the ticks of a chart depend on its size
    directory = recorded_run(stem, COMPILED, KEPT, IN_USE, ended, is_finite=False)
    async with shown(directory, False, size) as (app, pilot):
        await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
        for view in VIEWS:
            await pilot.press(view)
            await pilot.pause()
            found[view] = figures_on(app)
    return found


@pytest.mark.slow
def test_every_number_is_shown_in_full_or_left_out(home: object) -> None:
    async def scenario() -> None:
        large, small = await seen((300, 100)), await seen((300, 30))  # a small headline writes its figures as text
        full = {view: large[view] | small[view] for view in large}
        assert {"46.5 MB", "210 ops"} <= full["1"]
        for size in ((60, 20), (80, 24), (140, 40)):
            for view, figures in (await seen(size)).items():
                cut_off = figures - full[view] - full["1"]
                assert not cut_off, f"view {view} at {size}: {cut_off}"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("temps    36.4 MB", 16, "temps    36.4 MB"),
        ("temps    36.4 MB", 15, "temps…"),
        ("temps    36.4 MB", 12, "temps…"),
        ("kernel 4 × 128 × 512 of 3", 20, "kernel…"),
        ("took 3 min 20 s in all", 14, "took…"),
        ("step 1,204", 9, "step…"),
        ("mlp2.kernel_3 grows", 9, "mlp2.ker…"),
        ("漢字 36.4 MB", 8, "漢字…"),
        ("12", 1, "…"),
        ("12", 0, ""),
    ],
)
def test_text_is_cut_before_a_number(text: str, width: int, shown: str) -> None:
    assert cut(Content(text), width).plain == shown


@given(st.text(st.sampled_from("1 2.,MBkops×…of漢 -")), st.integers(0, 30))
def test_cut_text_always_fits(text: str, width: int) -> None:
    assert cut(Content(text), width).cell_length <= width
