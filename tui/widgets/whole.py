"""Text cut to the room there is, no number in two: half a number is another one, and so is one without its unit."""

import re

from textual.content import Content

UNIT = r"(?:[kMGTP]?B|[kMGTP]?FLOP(?:/s)?|µs|ms|s|min|h|%|[kMBT]|ops?)(?!\w)"
NUMBER = re.compile(rf"(?<![\w.])[+−-]?\d[\d.,:]*(?: ?(?:×|÷|…|of) ?\d[\d.,:]*)*(?: {UNIT})?(?:/s)?(?: \d+ {UNIT})*")
"""`1,204`, `4.72 MB`, `3 min 20 s`, `4 × 128`, `12 of 64`, `205…230 ms`."""
ELLIPSIS = "…"


def whole_before(text: str, end: int) -> int:
    """Where to cut so that no more than `end` characters stay, and every number of them is whole."""
    for number in NUMBER.finditer(text):
        if number.start() < end < number.end():
            return number.start()
    return end


def cut(content: Content, width: int) -> Content:
    """What fits into so many cells, and `…` where that is not all."""
    if content.cell_length <= width:
        return content
    kept = len(content.plain)
    while kept and content[:kept].cell_length > width - len(ELLIPSIS):
        kept -= 1
    kept = whole_before(content.plain, kept)
    return Content.assemble(content[:kept].rstrip(), ELLIPSIS) if width > 0 else Content()
