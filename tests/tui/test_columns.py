"""A table shows the columns for which there is room: figures whole, the one that sorts it always, texts cut."""

import math
from collections.abc import Sequence

import pytest
from rich.text import Text
from shardtui.engine.base import formatting
from shardtui.engine.wire.descriptions import MeshInfo
from shardtui.tui.state import board_rows, measured_rows, number_tables, tables
from shardtui.tui.state.experts import LOADS
from shardtui.tui.terminal.plain_table import GAP, NARROWEST, Column, figure, fit, needed_cells, table_of
from shardtui.tui.widgets.table import Table, shortened
from textual.app import App, ComposeResult

from .test_time import breakdown

FIGURE, TEXT = "1,234,567.8 GB", "layers/0/attention/" * 12 + "query.py:123"
TABLES = {
    "arrays": tables.array_columns(MeshInfo({"data": 8}, [])),
    "collectives": tables.collective_columns(),
    "buffers": tables.BUFFERS,
    "operations": tables.operation_columns(breakdown(idle=0.1)),
    "values": tables.VALUES,
    "estimated collectives": tables.ESTIMATED_COLLECTIVES,
    "numbers": number_tables.numbers_columns(),
    "layers": number_tables.LAYERS,
    "shards": number_tables.SHARDS,
    "experts": LOADS,
    "plan": board_rows.columns(),
    "compare": measured_rows.columns("tokens"),
}


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
def test_long_names_and_large_numbers_have_room_from_60_to_200_cells(columns: Sequence[Column[object]]) -> None:
    row = [Text(FIGURE if column.is_figure else TEXT) for column in columns]
    needed = needed_cells(columns, [row])
    stays = [column for column in columns if not column.leaves]
    for room in range(60, 201):
        for sorting in (None, *columns):
            shown = fit(columns, needed, room, sorting and sorting.name)
            assert {id(each) for each in (*stays, *([sorting] if sorting else []))} <= {id(columns[at]) for at in shown}
            assert all(cells == needed[at] for at, cells in shown.items() if columns[at].is_figure), "whole"
            must = [*stays, *([sorting] if sorting and sorting.leaves else [])]
            least = sum(needed[columns.index(each)] if each.is_figure else NARROWEST for each in must)
            assert sum(shown.values()) <= max(room, least)
            assert all(shortened(row[at], cells - GAP, columns[at]).cell_len <= cells for at, cells in shown.items())


def test_a_text_is_cut_where_it_says_least() -> None:
    path, name = Column[str]("source", str, cut="left"), Column[str]("mesh", str)
    assert shortened(Text("● models/attention.py:123"), 18, path).plain == "● …ttention.py:123"
    assert shortened(Text("data 4 × model 128"), 17, name).plain == "data 4 × model…", "no number is cut"
    assert shortened(Text("1,234,567"), 3, figure("bytes", len)).plain == "1,234,567"
    assert shortened(Text("日本語の名前"), 7, name).plain == "日本語…"


def test_columns_leave_in_their_order_and_texts_share_what_is_left() -> None:
    columns = [Column[str]("a", str), figure("b", len), Column[str]("c", str, leaves=2), figure("d", len, leaves=1)]
    assert fit(columns, [60, 10, 60, 10], 140) == {0: 60, 1: 10, 2: 60, 3: 10}
    assert fit(columns, [60, 10, 60, 10], 130) == {0: 55, 1: 10, 2: 55, 3: 10}
    assert fit(columns, [60, 10, 60, 10], 95) == {0: 42, 1: 10, 2: 42}
    assert fit(columns, [60, 10, 60, 10], 80) == {0: 60, 1: 10, 3: 10}, "one that has left has room again"
    assert fit(columns, [60, 10, 60, 10], 79) == {0: 60, 1: 10}
    assert fit(columns, [60, 10, 60, 10], 80, kept="d") == {0: 60, 1: 10, 3: 10}
    assert fit(columns, [60, 10, 60, 10], 15) == {0: 8, 1: 10}


def test_a_column_that_may_leave_and_is_empty_is_not_shown() -> None:
    columns = [
        Column("name", lambda row: row[0], leaves=1),
        figure("kept", lambda row: None),
        figure("padding", lambda row: row[1], leaves=2),
    ]
    empty, one = (table_of(columns, rows) for rows in ([("a", None), ("b", None)], [("a", None), ("b", 4)]))
    assert [column.header for column in empty.columns] == ["name", "kept"]
    assert [column.header for column in one.columns] == ["name", "kept", "padding"]
    assert len(table_of(columns, []).columns) == 3, "an empty table says what it would show"


class TableApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Table(sorted_by="size")


async def test_rows_are_sorted_by_value_or_else_by_text_with_what_is_unknown_last() -> None:
    """The values of two rows differ by less than their cells show."""
    rows = {"a": ("● beta", 1_204_400.0), "b": ("Alpha", 1_203_900.0), "c": ("", math.nan), "d": ("gamma", None)}
    columns = [Column("name", lambda row: row[0]), figure("size", lambda row: row[1], formatting.size)]
    async with TableApp().run_test() as pilot:
        table = pilot.app.query_one(Table)
        table.show_columns(columns, rows)
        found = [table.rows.keys]
        for action in (table.action_reverse, table.action_sort, table.action_sort, table.action_reverse):
            action()
            found.append(table.rows.keys)
    assert found == [list("abcd"), list("bacd"), list("abcd"), list("badc"), list("dabc")]


async def test_a_table_whose_columns_all_stay_is_not_wider_than_its_room() -> None:
    columns = [Column("name", str), figure("count", lambda row: row), figure("size", lambda row: row)]
    async with TableApp().run_test(size=(24, 10)) as pilot:
        table = pilot.app.query_one(Table)
        table.show_columns(columns, {str(row): row for row in (10**9, 2 * 10**9)})
        await pilot.pause()
        assert [columns[at].name for at in table.shown_widths] == ["name", "size"]
        assert table.rows.max_scroll_x == 0
