"""What the cells of a table are sorted by."""

import math
import re

MARKS = " ●○◌✗▾▸"
"""Characters beside a name that show its state, or that it can be opened."""
SCALES = {
    "": 1.0,
    "B": 1.0,
    "k": 1e3,
    "kB": 1e3,
    "M": 1e6,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "%": 1.0,
}
"""Factor of each unit that `engine.base.formatting` writes."""
FIGURE = re.compile(
    r"[≈ ]*(?P<sign>[−+-]?)(?P<number>\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?:…[\d.e-]+)? ?(?P<unit>[a-zA-Zµ%]*)(?![\w.])"
)
SHAPE = re.compile(r"\d+(?: ?× ?\d+)+")

SortValue = tuple[int, float, str]
"""Figures, then names, then what is unknown."""


def sort_value(text: str) -> SortValue:
    """Returns what a cell is sorted by: a figure with its unit, the product of a shape's sizes, or a name."""
    text = text.strip(MARKS)
    if not text or text in "–?…":
        return (2, 0.0, "")
    if SHAPE.fullmatch(text):
        return (0, float(math.prod(map(int, re.findall(r"\d+", text)))), "")
    found = FIGURE.match(text)
    if found is None or found["unit"] not in SCALES:
        return (1, 0.0, text.casefold())
    value = float(found["number"].replace(",", "")) * SCALES[found["unit"]]
    return (0, -value if found["sign"] in ("−", "-") else value, "")
