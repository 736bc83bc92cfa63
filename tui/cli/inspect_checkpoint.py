"""`shardtui inspect --checkpoint`: the arrays of any Orbax checkpoint, under another preset, or compared."""

import argparse
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.user_error import UserError
from ...engine.hlo.layout import notation, wasted_bytes
from ...engine.wire.checkpoints import Placed, StoredArray, StoredCheckpoint
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..client.engine_client import ask_engine
from ..state.tables import DIMS, ArrayRow, array_columns
from ..terminal.clean import clean
from ..terminal.plain_table import plain_table, table_of
from . import values
from .run_config import new_config

MAX_LINES = 20
"""Lines of problems and names in a table; JSON has them all."""
TITLE = "arrays, dims@axes"
ONE_DEVICE = MeshInfo({"device": 1}, [0])

Difference = Literal["gone", "new", "shape", "dtype", "spec", "mesh"]


class Saved(Struct, frozen=True):
    """How an array was saved."""

    shape: list[int]
    """Its unsharded shape."""
    dtype: str
    """Its numpy name."""
    spec: list[list[str]]
    """For each dim the mesh axes that split it, major first."""
    mesh: dict[str, int] | None
    """Mesh axis to size, in order; null if it was not saved from a mesh."""


class ArrayChange(Struct, frozen=True, kw_only=True):
    """An array that differs between two checkpoints."""

    name: str
    """Its name in the checkpoint."""
    differs: list[Difference]
    """What differs: `gone` is in the first only, `new` in the other only."""
    before: Saved | None
    """As the first checkpoint has it; null if that has none."""
    after: Saved | None
    """As the other one has it; null if that has none."""


class CheckpointDiff(Struct, frozen=True, kw_only=True):
    """What differs between two Orbax checkpoints. No values are read."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    directory: str
    """Directory of the first checkpoint's step."""
    other: str
    """Directory of the other one's."""
    arrays: list[ArrayChange]
    """The arrays that differ, by name."""
    problems: list[str]
    """What is damaged, missing or incomplete in either, one line each."""


def checkpoint_answer(options: argparse.Namespace) -> tuple[Struct, list[RenderableType], bool]:
    """Returns the answer, its tables, and whether anything is damaged or incomplete. Raises UserError."""
    if options.hlo or options.mesh or (options.preset and options.diff):
        raise UserError("--checkpoint takes either --preset or --diff OTHER, and no --hlo and --mesh")
    directory = options.checkpoint
    if options.diff:
        difference = diff(*ask_engine(StoredCheckpoint, "checkpoints", directory, values.path(options.diff)))
        return difference, _diff_tables(clean(difference)), bool(difference.problems)
    if options.preset:
        (found,) = ask_engine(StoredCheckpoint, "place-checkpoint", new_config(options), directory)
    else:
        (found,) = ask_engine(StoredCheckpoint, "checkpoints", directory)
    return found, _tables(clean(found)), bool(found.problems)


def _tables(found: StoredCheckpoint) -> list[RenderableType]:
    size = formatting.size(sum(array.bytes for array in found.arrays))
    title = f"{found.directory}: {formatting.counted(len(found.arrays), 'array')}, {size}"
    title += f", the newest of {found.newest_of} steps" if found.newest_of > 1 else ""
    tables = _placed_tables(found.placed) if found.placed else _saved_tables(found)
    return [Text(title, "bold"), *tables, *_problem_lines(found.problems)]


def _saved_tables(found: StoredCheckpoint) -> list[RenderableType]:
    groups: dict[int | None, tuple[MeshInfo, str]] = {
        at: (mesh, f"saved on {formatting.axes(mesh.axes)}") for at, mesh in enumerate(found.meshes)
    }
    groups[None] = ONE_DEVICE, "saved from one device or the host, or without a sharding"
    tables: list[RenderableType] = []
    for at, (mesh, title) in groups.items():
        arrays = [array for array in found.arrays if array.mesh == at]
        tables += [arrays_table(arrays, mesh, title)] if arrays else []
    return tables


def _placed_tables(placed: Placed) -> list[RenderableType]:
    title = f"under {placed.preset}: {formatting.axes(placed.mesh.axes)}, names and axes of {placed.model}"
    tables: list[RenderableType] = [arrays_table(placed.arrays, placed.mesh, title)] if placed.arrays else []
    tables += _problem_lines(placed.problems)
    if placed.unnamed:
        names = formatting.listed(placed.unnamed, 3)
        arrays = formatting.counted(len(placed.unnamed), "array")
        tables.append(Text(f"{arrays} without a name of {placed.model}, so without a rule: {names}"))
    return tables


def _problem_lines(problems: Sequence[str]) -> list[RenderableType]:
    hidden = len(problems) - MAX_LINES
    lines: list[RenderableType] = [Text(problem, "red") for problem in problems[:MAX_LINES]]
    return [*lines, Text(f"and {hidden:,} more: --json lists all", "red")] if hidden > 0 else lines


def arrays_table(arrays: Sequence[ArrayInfo], mesh: MeshInfo, title: str = TITLE) -> Table:
    """Returns a table of the arrays, most redundant bytes first. A name and its dims share a cell, which wraps well."""
    found = sorted(arrays, key=lambda array: -wasted_bytes(array, mesh))
    rows = [ArrayRow(array.name, array.name + notation(array), 0, (array,)) for array in found]
    columns = [column for column in array_columns(mesh) if column.name != DIMS]
    return table_of(columns, rows, title=title)


def diff(one: StoredCheckpoint, other: StoredCheckpoint) -> CheckpointDiff:
    before, after = _saved(one), _saved(other)
    changes = [
        ArrayChange(name=name, differs=differs, before=before.get(name), after=after.get(name))
        for name in [*before, *(name for name in after if name not in before)]
        if (differs := _differences(before.get(name), after.get(name)))
    ]
    return CheckpointDiff(
        directory=one.directory, other=other.directory, arrays=changes, problems=[*one.problems, *other.problems]
    )


def _saved(found: StoredCheckpoint) -> dict[str, Saved]:
    def mesh(array: StoredArray) -> dict[str, int] | None:
        return None if array.mesh is None else found.meshes[array.mesh].axes

    return {each.name: Saved(each.shape, each.dtype, each.spec, mesh(each)) for each in found.arrays}


def _differences(before: Saved | None, after: Saved | None) -> list[Difference]:
    if before is None or after is None:
        return ["new"] if before is None else ["gone"]
    names: tuple[Difference, ...] = ("shape", "dtype", "spec", "mesh")
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _diff_tables(found: CheckpointDiff) -> list[RenderableType]:
    shown = [change for change in found.arrays if change.differs != ["mesh"]]
    table = plain_table("array", "differs", "before", "after", title=f"{found.directory} and {found.other}")
    for change in shown:
        cells = change.name, ", ".join(change.differs), _words(change.before), _words(change.after)
        table.add_row(*map(Text, cells))
    tables: list[RenderableType] = [table] if shown else []
    if moved := len(found.arrays) - len(shown):
        tables.append(Text(f"and {formatting.counted(moved, 'array')} with another mesh only: --json lists them"))
    return [*(tables or ["no array differs"]), *_problem_lines(found.problems)]


def _words(saved: Saved | None) -> str:
    if saved is None:
        return ""
    lies = f" {formatting.spec(saved.spec)} on {formatting.axes(saved.mesh)}" if saved.mesh else ""
    return f"{saved.dtype} [{formatting.shape(saved.shape)}]{lies}"
