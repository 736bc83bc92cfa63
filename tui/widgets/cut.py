"""Cuts text to a width without cutting a number: half a number, or one without its unit, is a wrong number."""

import re

from textual.content import Content

UNIT = r"(?:[kMGTP]?B|[kMGTP]?FLOP(?:/s)?|µs|ms|s|min|h|%|[kMGBTP]|ops?)(?!\w)"
NUMBER = re.compile(rf"(?<![\w.])[+−-]?\d[\d.,:]*(?: ?(?:×|÷|…|of) ?\d[\d.,:]*)*(?: {UNIT})?(?:/s)?(?: \d+ {UNIT})*")
"""Matches a number with its unit: `1,204`, `4.72 MB`, `3 min 20 s`, `4 × 128`, `12 of 64`, `205…230 ms`."""
ELLIPSIS = "…"


def cut_point(text: str, end: int) -> int:
    """Returns where to cut so that at most `end` characters remain and no number is cut."""
    for number in NUMBER.finditer(text):
        if number.start() < end < number.end():
            return number.start()
    return end


def cut(content: Content, width: int) -> Content:
    """Returns the content cut to `width` cells, ending in `…` if anything is cut."""
    if content.cell_length <= width:
        return content
    kept = len(content.plain)
    while kept and content[:kept].cell_length > width - len(ELLIPSIS):
        kept -= 1
    kept = cut_point(content.plain, kept)
    return Content.assemble(content[:kept].rstrip(), ELLIPSIS) if width > 0 else Content()
