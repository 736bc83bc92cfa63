"""`shardtui why`: why a preset's step is laid out as it is, and what other rules would change."""

import argparse

import msgspec
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.table import Column
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.origins.explanation import Explanation, StepRequest
from ..client.engine_client import ask_engine
from ..state.explanation_diff import changes, layouts, traffic
from ..state.tried_rules import EXAMPLES, read_rule
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import plain_table, right, table_console
from .explain import chain_lines, matching
from .options import add_json_option, add_step_options
from .run_config import new_config


class WhyReport(Explanation, frozen=True, kw_only=True):
    """The arrays and collectives of a preset's step whose name or source matches, and what other rules change."""

    tried: dict[str, list[str]]
    """The rules that were tried, by logical axis."""
    changes: list[str]
    """One line for each change of a layout, an origin or a collective with those rules; empty if none was tried."""


def why_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="part of an array's name or of a source line, such as mlp.up or blocks.py:104")
    add("--compile", action="store_true", help="compile the step as well: what the compiler chose")
    add(
        "--try",
        dest="tried",
        action="append",
        default=[],
        type=_rule,
        metavar="AXIS=MESHAXES",
        help=f"show what changes with another rule, {EXAMPLES}; repeatable",
    )
    add_step_options(parser)
    add_json_option(parser)


def why_command(options: argparse.Namespace) -> int:
    step = StepRequest(config=new_config(options), rules=dict(options.tried), compiles=options.compile)
    lines = ask_engine("why", step).splitlines()
    before, *after = [msgspec.json.decode(line, type=Explanation) for line in lines]
    found = matching(before, options.name)
    changed = [line for other in after for line in changes(before, other)]
    if options.json:
        print(json_line(WhyReport(**asdict(found), tried=step.rules, changes=changed)))
        return FINE
    shown = [*chain_lines(clean(found)), *(_tried(before, after[0]) if after else ())]
    table_console().print(*shown, sep="\n")
    return FINE


def _tried(before: Explanation, after: Explanation) -> list[RenderableType]:
    changed = plain_table(Column("value", overflow="fold"), "before", "after", title="layouts with the other rules")
    for cells in layouts(before, after):
        changed.add_row(*map(Text, cells))
    moved = plain_table("collective", "over", right("before"), right("after"), title="bytes per device and step")
    for kind, axes, *sizes in traffic(before, after):
        moved.add_row(kind, Text(axes), *map(figures.size, sizes))
    return ["", changed if changed.row_count else "no layout changes", moved]


def _rule(text: str) -> tuple[str, list[str]]:
    try:
        return read_rule(text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(error.problems[0]) from error
