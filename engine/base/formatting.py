"""Numbers, shapes and names formatted for people."""

import math
from collections.abc import Sequence
from itertools import pairwise

WRAPPERS = ("while", "body", "closed_call", "checkpoint", "cond", "shard_map", "eval_jaxpr", "vmap(vmap())")
"""Parts that jax adds to an op name for its own control flow and transformations."""
BARS = "▁▂▃▄▅▆▇█"


def size(count: float) -> str:
    """Formats bytes in decimal units with three digits: `9.87 MB`."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def seconds(value: float) -> str:
    """Formats seconds: `31 ms`, `4.2 s`, `3 min 20 s`."""
    if value < 0.0005:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms" if value >= 0.0095 else f"{value * 1e3:.1f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def rough_seconds(value: float) -> str:
    """Formats seconds in one unit, rounded down: `42 s`, `12 min`, `5 h`, `3 d`."""
    whole = max(0, int(value))
    steps = ((86400, "d"), (3600, "h"), (60, "min"))
    return next((f"{whole // each} {unit}" for each, unit in steps if whole >= each), f"{whole} s")


def count(value: float) -> str:
    """Formats a number of parameters: `848 k`, `124 M`, `1.56 B`."""
    return _scaled(value, ("", "k", "M", "B", "T"))


def three_digits(value: float) -> str:
    """Formats a number rounded to three digits, in full: `9,640`."""
    return f"{float(f'{value:.3g}'):,.0f}"


def number(value: float, digits: int = 3) -> str:
    """Formats a number of any magnitude, rounded to some digits: `0.0213`, `1.2e-5`, `3.2e4`, `nan`."""
    if not value or 0.001 <= abs(value) < 10**digits - 0.5 or not math.isfinite(value):
        return f"{value:.{digits}g}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def rate(value: float) -> str:
    """Formats a number with the prefix of the unit that the caller appends: `2.3 G` for `2.3 GFLOP/s`."""
    return _scaled(value, ("", "k", "M", "G", "T", "P", "E"))


def percent(value: float) -> str:
    """Formats a fraction as a percentage: `58 %`."""
    return f"{value:.0%}".replace("%", " %")


def axes(sizes: dict[str, int]) -> str:
    """Formats the axes of a mesh: `data 4 × model 2`."""
    return " × ".join(f"{name} {length}" for name, length in sizes.items())


def shape(sizes: Sequence[int]) -> str:
    """Formats a shape: `4 × 128 × 512`, `–` for a scalar."""
    return " × ".join(str(size) for size in sizes) or "–"


def spec(entries: Sequence[str | Sequence[str] | None]) -> str:
    """Formats the mesh axes of each dim of an array: `(–, fsdp, data+model)`."""
    return f"({', '.join(entry if isinstance(entry, str) else '+'.join(entry or ()) or '–' for entry in entries)})"


def layout(
    axes: Sequence[Sequence[str]], unreduced: Sequence[str] = (), device: int | None = None, memory: str = ""
) -> str:
    """Formats the layout of an array: `(–, fsdp)`, `(–, –) unreduced over data`, `only on device 0`, `(fsdp) in
    pinned_host`."""
    sums = f" unreduced over {over(unreduced)}" if unreduced else ""
    where = f" in {memory}" if memory not in ("", "device") else ""
    return f"{spec(axes) if device is None else f'only on device {device}'}{sums}{where}"


def bars(values: Sequence[float], low: float, high: float) -> str:
    """Formats a course: a bar for each value, the lowest for `low` and the highest for `high`, such as `█▆▄▃▂▁`."""
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def over(axes: Sequence[str], network: str | None = None) -> str:
    """Formats the mesh axes of a collective: `data × model`, `–` for none; `data on DCN` between TPU slices."""
    return (" × ".join(axes) or "–") + {"dcn": " on DCN", "network": " on network"}.get(network or "", "")


def times(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def counted(count: int | None, noun: str) -> str:
    """Formats a number of things: `1 step`, `2,000 steps`, `? steps`, `2 batches`."""
    plural = "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{times(count)} {noun}{plural * (count != 1)}"


def in_step(count: float | None) -> str:
    """Formats the bytes moved in one step, `?` if it is unknown how often they move."""
    return "?" if count is None else size(count)


def short_source(source: str) -> str:
    """Returns a source line without its directories: `model.py:93` for `/home/me/engine/model.py:93`."""
    return source.rpartition("/")[2]


def place(source: str, caller: str = "") -> str:
    """Formats a source line and the one that calls its function: `model.py:93 ← train.py:12`; empty without one."""
    return " ← ".join(map(short_source, filter(None, (source, caller))))


def at(source: str, caller: str = "") -> str:
    """Returns ` at model.py:93`; empty without a source."""
    return f" at {place(source, caller)}" if source else ""


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns at most `most` names, and how many more there are: `a, b and 2 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"


def op(name: str) -> str:
    """Shortens an HLO op name: `transpose(jvp(blocks))/mlp/dot_general`, without the parts for `jit`, `while` etc. A
    combined collective, `…/(a:b:c)`, becomes `…/a and 2 more`."""
    head, bracket, combined = name.partition("/(")
    first, *others = combined.removesuffix(")").split(":") if bracket else [""]
    path = f"{head}/{first}" if first else head
    parts = [part for part in path.split("/") if part and part not in WRAPPERS]
    short = "/".join(parts[1:] if parts and parts[0].startswith("jit(") else parts)
    return f"{short} and {len(others)} more" if others else short


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}".strip()
        value /= 1000
    return f"{value:.3g} {units[-1]}"


def maxima(course: Sequence[int], most: int) -> list[int]:
    """Returns the largest value of each of at most `most` equal parts of a course, for a picture of it."""
    count = min(len(course), most)
    bounds = [len(course) * part // count for part in range(count + 1)] if count else []
    return [max(course[begin:end]) for begin, end in pairwise(bounds)]
