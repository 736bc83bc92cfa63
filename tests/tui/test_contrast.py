"""Text is readable in every theme, also on a selected row."""

from pathlib import Path

import pytest
from shardtui.tui.terminal.contrast import BACKGROUNDS, LEAST, TEXTS, contrast, readable
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from .test_app import finished
from .test_number_views import run_with

OWN = [theme for theme in BUILTIN_THEMES.values() if not theme.name.startswith("ansi")]


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_text_is_readable_on_all_backgrounds(theme: object) -> None:
    found = readable(theme.to_color_system().generate())  # type: ignore[attr-defined]
    colours = {name: Color.parse(found[name]) for name in (*TEXTS, *BACKGROUNDS)}
    assert min(contrast(colours[text], colours[on]) for text in TEXTS for on in BACKGROUNDS) >= LEAST
    assert colours["accent"] != colours["warning"]


def test_contrast_is_that_of_wcag_and_the_terminals_own_colours_stay() -> None:
    assert contrast(Color.parse("black"), Color.parse("white")) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), Color.parse("white")) == pytest.approx(4.48, abs=0.01)
    ansi = BUILTIN_THEMES["ansi-dark"].to_color_system().generate()
    assert readable(ansi) == ansi


async def test_the_app_draws_with_them(home: Path) -> None:
    async with finished(run_with()) as (app, _):
        for theme in ("textual-light", "textual-dark"):
            app.theme = theme
            expected = readable(BUILTIN_THEMES[theme].to_color_system().generate())
            assert app.get_css_variables()["text-muted"] == app.theme_variables["text-muted"] == expected["text-muted"]
