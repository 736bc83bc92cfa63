"""Exports a view, or any rich output, as SVG and as text."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App

FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def without_fonts(svg: str) -> str:
    """Removes the fonts that the exporters name and a browser would fetch: any monospaced font will do."""
    return FONT_FACE.sub("", svg)


def screen_svg(app: "App[Any]") -> str:
    return without_fonts(app.export_screenshot(simplify=True))


def screen_text(app: "App[Any]") -> str:
    """Returns the text on the current screen, without trailing spaces. Textual has no public method for it."""
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def save_view(app: "App[Any]", stem: str) -> list[Path]:
    """Writes `STEM.svg` and `STEM.txt` into the working directory. Raises OSError."""
    svg, text = Path.cwd() / f"{stem}.svg", Path.cwd() / f"{stem}.txt"
    svg.write_text(screen_svg(app), encoding="utf-8")
    text.write_text(screen_text(app), encoding="utf-8")
    return [svg, text]
