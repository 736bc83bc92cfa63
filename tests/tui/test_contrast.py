"""Text is readable in every theme, also on a selected row."""

from functools import partial
from pathlib import Path

import pytest
from shardtui.tui.terminal.axis_style import ANSI, AXIS_STYLES, axis_style
from shardtui.tui.terminal.contrast import BACKGROUNDS, LEAST, TEXTS, contrast, readable
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from .recordings import recorded
from .test_app import finished, until

OWN = [theme for theme in BUILTIN_THEMES.values() if not theme.name.startswith("ansi")]


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_text_is_readable_on_all_backgrounds(theme: object) -> None:
    found = readable(theme.to_color_system().generate())  # type: ignore[attr-defined]
    colours = {name: Color.parse(found[name]) for name in (*TEXTS, *AXIS_STYLES, *BACKGROUNDS)}
    assert min(contrast(colours[text], colours[on]) for text in (*TEXTS, *AXIS_STYLES) for on in BACKGROUNDS) >= LEAST
    assert colours["accent"] != colours["warning"]


def test_contrast_is_that_of_wcag_and_the_terminals_own_colours_stay() -> None:
    assert contrast(Color.parse("black"), Color.parse("white")) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), Color.parse("white")) == pytest.approx(4.48, abs=0.01)
    ansi = BUILTIN_THEMES["ansi-dark"].to_color_system().generate()
    assert readable(ansi) == {**ansi, **{name: f"ansi_{colour}" for name, colour in ANSI.items()}}


async def test_the_app_draws_with_them_and_an_axis_has_one_colour_in_every_view(home: Path) -> None:
    """Rich draws tables and Textual what is around them: both take the colour from the theme."""
    async with finished(recorded(), (140, 40)) as (app, pilot):

        def is_shown(expected: tuple[int, int, int]) -> bool:
            strips = app.screen._compositor.render_strips()  # the only way to what is on the screen
            found = (segment for strip in strips[2:] for segment in strip if segment.text == "model" and segment.style)
            return expected in {each.style.color.triplet for each in found if each.style and each.style.color}

        for theme in ("textual-light", "textual-dark"):
            app.theme = theme
            muted = readable(BUILTIN_THEMES[theme].to_color_system().generate())["text-muted"]
            assert app.get_css_variables()["text-muted"] == app.theme_variables["text-muted"] == muted
            expected = Color.parse(app.get_css_variables()[axis_style("model")]).rgb
            for key in "1234":
                await pilot.press(key)
                await until(partial(is_shown, expected), f"the colour in view {key} of {theme}")
