"""The colours of a theme, made readable on its backgrounds and on a selected row."""

from collections.abc import Mapping

from textual.color import Color

from .axis_style import ANSI, AXIS_STYLES

LEAST = 4.5
"""Contrast of text, as WCAG 2.2 asks for (success criterion 1.4.3)."""
TEXTS = ("primary", "secondary", "accent", "success", "warning", "error", "text-muted")
BACKGROUNDS = ("background", "surface", "panel", "block-cursor-background")
SELECTED = 0.2
"""The part of the primary colour in the background of a selected row."""
STEP = 0.02
MUTED = 0.6
TURN = 1 / 6
"""From the hue of the primary colour to that of an accent that would look like a warning."""
AXIS_HUES = (210, 320, 165, 280, 95, 240, 130)
"""Degrees, of the mesh axes: far from orange and red, which warn."""


def readable(theme: Mapping[str, str]) -> dict[str, str]:
    """Returns a theme's variables with the colours of text as much lighter, or darker, as it takes to read them. An
    accent in the colour of warnings gets another hue. A theme of the terminal's own colours stays as it is."""
    colours = {name: Color.parse(theme[name]) for name in (*TEXTS[:-1], *BACKGROUNDS[:-1], "foreground")}
    if any(colour.ansi is not None for colour in colours.values()):
        return {**theme, **{name: f"ansi_{colour}" for name, colour in ANSI.items()}}
    foreground = colours["foreground"]
    if colours["accent"] == colours["warning"]:
        hue, saturation, lightness = colours["primary"].hsl
        colours["accent"] = Color.from_hsl((hue + TURN) % 1, saturation, lightness)
    colours["block-cursor-background"] = colours["background"].blend(colours["primary"], SELECTED)
    colours["text-muted"] = colours["background"].blend(foreground, MUTED)
    backgrounds = [colours[name] for name in BACKGROUNDS]
    is_dark = colours["background"].brightness < 0.5
    colours |= {name: Color.from_hsl(hue / 360, 0.6, 0.6) for name, hue in zip(AXIS_STYLES, AXIS_HUES, strict=True)}
    for name in (*TEXTS, *AXIS_STYLES):
        colour, by = colours[name], 0.0
        while min(contrast(colour, each) for each in backgrounds) < LEAST and by < 1:
            by += STEP
            colour = colours[name].lighten(by) if is_dark else colours[name].darken(by)
        colours[name] = colour
    colours["footer-key-foreground"] = colours["accent"]
    for name in ("block-cursor-foreground", "block-cursor-blurred-foreground"):
        colours[name] = foreground
    colours["block-cursor-blurred-background"] = colours["block-cursor-background"]
    return {**theme, **{name: colour.hex for name, colour in colours.items()}}


def contrast(one: Color, other: Color) -> float:
    """Returns the contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    less, more = sorted(map(_luminance, (one, other)))
    return (more + 0.05) / (less + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
