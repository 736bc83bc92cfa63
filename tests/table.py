"""A table that a suite prints row by row and, with `--record`, writes to docs/data, from where docs/tables.py draws it.

Columns are given with their formats, those of docs/tables.py; rows with the figures themselves. What is recorded on one
package set replaces the figures of that set alone.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from docs.tables import DATA, Cell, Entry, Sets, markdown, markdown_row, text
from tests.suite import ROOT, machine, package_versions


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--record", action="store_true", help="write what is measured to docs/data")
    return parser.parse_args()


class Table:
    """As a context: what it holds at the end is recorded, if it `records`, but not after an exception."""

    def __init__(self, name: str, columns: dict[str, str], records: bool = False, command: str = "") -> None:
        self.name, self.columns, self.records = name, columns, records
        self.command = command or _command()
        self.rows: list[list[Cell]] = []

    @property
    def heads(self) -> list[str]:
        return list(self.columns)

    def shown(self, cells: Sequence[Cell]) -> list[str]:
        return [text(cell, form) for cell, form in zip(cells, self.columns.values(), strict=True)]

    def __enter__(self) -> Self:
        print(markdown(self.heads, []), end="", flush=True)
        return self

    def add(self, *cells: Cell) -> None:
        print(markdown_row(self.shown(cells)), flush=True)
        json.dumps(cells)  # what cannot be recorded ends a long suite at its first row
        self.rows.append(list(cells))

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if not self.records or kind is not None:
            return
        path = DATA / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        sets: Sets = json.loads(path.read_text()) if path.exists() else {}
        sets[python()] = {
            "command": self.command,
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            "versions": package_versions(),
            "machine": machine(),
            "columns": self.columns,
            "rows": self.rows,
        }
        path.write_text(encoded(sets))


def python() -> str:
    """What docs/data calls this package set: `3.11`."""
    return "{}.{}".format(*platform.python_version_tuple())


def encoded(sets: Sets) -> str:
    """JSON with a row a line, for diffs."""
    return "{\n" + ",\n".join(f' "{name}": {{\n{_fields(sets[name])}\n }}' for name in sorted(sets)) + "\n}\n"


def _fields(entry: Entry) -> str:
    encode = partial(json.dumps, ensure_ascii=False)
    rows = ",\n".join(f"   {encode(row)}" for row in entry["rows"])
    fields = [f'  "{name}": {encode(value)}' for name, value in entry.items() if name != "rows"]
    return ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]'])


def _command() -> str:
    path = Path(sys.argv[0]).resolve().relative_to(ROOT)
    return " ".join(["python", str(path), *(argument for argument in sys.argv[1:] if argument != "--record")])
