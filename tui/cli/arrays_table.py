"""The table of arrays that `shardtui inspect` prints."""

from collections.abc import Sequence

from rich.table import Table

from ...engine.hlo.layout import notation, wasted_bytes
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..state.tables import DIMS, ArrayRow, array_columns
from ..terminal.plain_table import table_of

TITLE = "arrays, dims@axes"


def arrays_table(arrays: Sequence[ArrayInfo], mesh: MeshInfo, title: str = TITLE) -> Table:
    """Returns a table of the arrays, most redundant bytes first. A name and its dims share a cell, which wraps well."""
    found = sorted(arrays, key=lambda array: -wasted_bytes(array, mesh))
    rows = [ArrayRow(array.name, array.name + notation(array), 0, (array,)) for array in found]
    columns = [column for column in array_columns(mesh) if column.name != DIMS]
    return table_of(columns, rows, title=title)
