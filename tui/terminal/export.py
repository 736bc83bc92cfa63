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


def save_view(app: "App[Any]", stem: str) -> None:
    """Writes `STEM.svg` and `STEM.txt` into the working directory, and shows the user that, or why not."""
    texts = {f"{stem}.svg": screen_svg(app), f"{stem}.txt": screen_text(app)}
    try:
        for name, text in texts.items():
            (Path.cwd() / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        app.notify(f"{error.filename}: {error.strerror}", title="export failed", severity="error", markup=False)
    else:
        app.notify("\n".join(texts), title=f"exported to {Path.cwd()}", markup=False)
