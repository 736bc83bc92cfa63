"""Draws the tables of these pages from docs/data: `python docs/tables.py` rewrites the pages, `--check` exits 1 where a
page and the data differ.

A page names a table between two comments, `<!-- table: faults/kills -->` and `<!-- end -->`. The suites write the data
with `--record` (tests/table.py): for each package set, named by its Python, the rows and how they were measured. One
table shows all sets: where they differ, a cell has the figure of each, 3.11 before 3.12.
"""

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardtui.engine.base import formatting

DOCS = Path(__file__).parent
DATA = DOCS / "data"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"((?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?!\w))")
PAIRED = 5
"""As many figures of one cell may differ before each package set gets a line of its own."""

OF_COMPILERS = ("plan/", "long/estimates", "long/program_costs", "long/search", "bench/maxtext")
"""Tables whose figures come from the TPU's compiler."""

Cell = str | int | float | None
Entry = dict[str, Any]
"""Of one package set: command, date, python, versions, machine, columns and rows. What is not known is left out."""
Sets = dict[str, Entry]
Row = list[str]
Figure = dict[str, Any]
"""A row of a benchmark by column."""

FORMATS: dict[str, Callable[[Any], str]] = {
    "bytes": formatting.size,
    "seconds": formatting.seconds,
    "part": formatting.percent,
    "milliseconds": lambda seconds: f"{1e3 * seconds:.0f} ms",
}
"""Formats of a column by name. Others are those of `str.format`; that of a column that names its row is empty."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a page and the data differ")
    check = parser.parse_args().check
    shown: set[str] = set()
    wrong: list[str] = []
    for page in sorted(DOCS.glob("*.md")):
        was = page.read_text()
        shown |= {found[2] for found in MARKED.finditer(was)}
        if was.count("<!-- table:") != len(MARKED.findall(was)):
            wrong.append(f"{page.name}: a table has no <!-- end -->")
        elif (now := MARKED.sub(lambda found: f"{found[1]}{drawn(found[2])}{found[4]}", was)) != was:
            if check:
                wrong.append(f"{page.name} differs from docs/data: run `python docs/tables.py`")
            else:
                page.write_text(now)
    recorded = {path.relative_to(DATA).with_suffix("").as_posix() for path in DATA.rglob("*.json")}
    wrong += [f"docs/data/{name}.json is on no page: add <!-- table: {name} -->" for name in sorted(recorded - shown)]
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
    return 1 if wrong else 0


def drawn(name: str) -> str:
    path = DATA / f"{name}.json"
    if not path.exists():
        return "\nNot recorded yet.\n\n"
    sets: Sets = dict(sorted(json.loads(path.read_text()).items(), key=lambda item: _version(item[0])))
    draw = {"faults": _faults, "bench": _figures}.get(name.partition("/")[0], _table)
    shown = ("jax", "libtpu") if name.startswith(OF_COMPILERS) else ("jax",)
    return f"\n{_source(sets, shown)}\n\n{draw(sets)}\n"


def text(cell: Cell, form: str) -> str:
    """As it is printed, whatever is in it: no HTML, no end of a cell."""
    if cell is None:
        return ""
    known = str if isinstance(cell, str) else FORMATS.get(form, (form or "{}").format)
    return known(cell).replace("|", "\\|").replace("<", "\\<")


def pair(texts: dict[str, str]) -> str:
    """One text for all package sets: with the figures of each where few differ, or else with a line for each that has
    one."""
    parts = [NUMBER.split(shown) for shown in texts.values()]
    if len({tuple(part[::2]) for part in parts}) == 1:
        columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        if sum(len(column) > 1 for column in columns) <= PAIRED:
            return "".join(" · ".join(column) for column in columns)
    return "<br>".join(f"{name}: {shown}" for name, shown in texts.items() if shown)


def _source(sets: Sets, shown: Sequence[str]) -> str:
    """How the figures were made: of the packages, those that are shown."""

    def packages(entry: Entry) -> str:
        found = {"Python": entry.get("python"), **entry.get("versions", {})}
        return ", ".join(f"{name} {found[name]}" for name in ("Python", *shown) if found.get(name))

    kinds: list[Callable[[Entry], str]] = [
        lambda entry: f"`{entry['command']}`",
        packages,
        lambda entry: entry.get("machine", ""),
        lambda entry: entry.get("date", ""),
    ]
    parts = (pair({name: kind(entry) for name, entry in sets.items()}) for kind in kinds)
    return "; ".join(filter(None, parts))


def _table(sets: Sets) -> str:
    return _without_empty_columns(*_paired(sets))


def _without_empty_columns(heads: Row, rows: list[Row]) -> str:
    full = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return markdown([heads[place] for place in full], [[row[place] for place in full] for row in rows])


def _paired(sets: Sets) -> tuple[list[str], list[Row]]:
    """The rows of all sets, matched by the columns that name them."""
    columns: dict[str, str] = next(iter(sets.values()))["columns"]
    rows: dict[tuple[Cell, ...], dict[str, Row]] = {}
    for name, entry in sets.items():
        assert entry["columns"] == columns, f"{name} has other columns: record both package sets"
        for cells in entry["rows"]:
            key = tuple(cell for cell, form in zip(cells, columns.values(), strict=True) if not form)
            of_sets = rows.setdefault(key, {})
            assert name not in of_sets, f"two rows are named {key}"
            of_sets[name] = list(map(text, cells, columns.values()))
    empty = [""] * len(columns)
    paired = [
        [
            pair({name: of_sets.get(name, empty)[place] for name in (sets if form else of_sets)})
            for place, form in enumerate(columns.values())
        ]
        for of_sets in rows.values()
    ]
    return list(columns), paired


def _faults(sets: Sets) -> str:
    """What ended alike is one row, and `all` stands for as many as were injected."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for injected, times, survived, note in _paired({name: _counted(entry) for name, entry in sets.items()})[1]:
        groups.setdefault((times, survived, note), []).append(injected)
    rows = [
        [_joined(names), f"{len(names)} × {times}" if names[1:] else times, *rest]
        for (times, *rest), names in groups.items()
    ]
    return markdown(["injected", "times", "survived", "seen"], rows)


def _counted(entry: Entry) -> Entry:
    """`all`, or `49 of 50` survived."""
    rows = [
        [injected, times, "all" if survived == times else f"{survived:,} of {times:,}", note]
        for injected, times, survived, note in entry["rows"]
    ]
    return {**entry, "rows": rows}


def _joined(names: Sequence[str]) -> str:
    """`SIGKILL in a step, save, switch`: the words that all begin with stand once."""
    if not names[1:]:
        return names[0]
    words = [name.split(" ") for name in names]
    shared = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))))
    rest = [" ".join(each[shared:]) for each in words]
    return " ".join([*words[0][:shared], ("; " if any("," in name for name in rest) else ", ").join(rest)])


def _figures(sets: Sets) -> str:
    """Of the benchmarks: a column for each package set."""
    found: dict[str, dict[str, Figure]] = {}
    for name, entry in sets.items():
        for cells in entry["rows"]:
            figure: Figure = dict(zip(entry["columns"], cells, strict=True))
            found.setdefault(figure["figure"], {})[name] = figure
    names = list(sets)
    return _without_empty_columns(figure_heads(names), [figure_row(of_sets, names) for of_sets in found.values()])


def figure_heads(sets: Sequence[str]) -> Row:
    return ["figure", *sets, "target", f"compared with, {sets[0]}"]


def figure_row(of_sets: dict[str, Figure], sets: Sequence[str]) -> Row:
    cells = [_measured(of_sets[name]) if name in of_sets else "" for name in sets]
    first = next(iter(of_sets.values()))
    goal = "" if first["bound"] is None else f"{first['sign']} {first['bound']:g}"
    against = of_sets[sets[0]]["against"] if sets[0] in of_sets else None
    return [text(first["figure"], ""), *cells, goal, text(None if against == "nothing" else against, "")]


def _measured(figure: Figure) -> str:
    """The median, the range of the repeats, and ✗ where the target is missed."""
    spread = f" ({figure['low']:.3g} … {figure['high']:.3g})" if figure["n"] > 1 else ""
    over = 0.0 if figure["bound"] is None else figure["value"] - figure["bound"]
    is_missed = over < 0 if figure["sign"] == "≥" else over > 0
    return f"{figure['value']:.3g} {figure['unit']}".strip() + spread + " ✗" * is_missed


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([markdown_row(heads), "|---" * len(heads) + "|", *map(markdown_row, rows), ""])


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(name: str) -> list[int]:
    return [int(part) for part in name.split(".")]


if __name__ == "__main__":
    sys.exit(main())
