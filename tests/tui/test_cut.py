"""No number is cut, whatever the size of the terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base import formatting
from shardtui.engine.wire.events import EngineStopped, MemoryMeasured, ProgramsKept
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.lines import NUMBER, cut
from textual.content import Content

from ..recorded import recorded_run
from .recordings import described
from .test_app import finished

(INSPECTION,) = described("dp")
COMPILED = INSPECTION.compiled


async def figures(size: tuple[int, int]) -> dict[str, set[str]]:
    """Returns by view the numbers with a decimal point or a unit: a cut number would lose them."""
    events = (
        COMPILED,
        ProgramsKept(presets=["dp"], bytes=23_400_000, limit_bytes=2_150_000_000),
        MemoryMeasured(
            source="live arrays", bytes_in_use=11_300_000, peak_bytes=None, limit_bytes=None, bytes_by_device={}
        ),
        EngineStopped(step=4, reason="stopped"),
    )
    found: dict[str, set[str]] = {}
    directory = recorded_run(f"{size[0]}-{size[1]}", *events, is_finite=False)  # ticks of losses depend on the size
    async with finished(directory, size) as (app, pilot):
        for view in "12346":
            await pilot.press(view)
            await pilot.pause()
            lines = "\n".join(screen_text(app).splitlines()[:-1])  # the last one has only keys
            numbers = {match[0].strip(".,") for match in re.finditer(NUMBER, lines)}
            found[view] = {text for text in numbers if "." in text or re.search(r"[a-zA-Zµ%]", text)}
    return found


@pytest.mark.slow
async def test_every_number_is_shown_in_full_or_left_out(home: object) -> None:
    large, small = await figures((300, 100)), await figures((300, 30))  # a small headline writes its figures as text
    full = {view: large[view] | small[view] for view in large}
    operations = sum(collective.count for collective in COMPILED.collectives)
    assert {formatting.size(COMPILED.memory.peak), f"{operations} ops"} <= full["1"]
    for size in ((60, 20), (80, 24), (140, 40)):
        for view, shown in (await figures(size)).items():
            cut_off = shown - full[view] - full["1"]
            assert not cut_off, f"view {view} at {size}: {cut_off}"


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
