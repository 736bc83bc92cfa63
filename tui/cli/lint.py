"""`shardtui lint`: finds likely mistakes in the layout of a preset."""

import argparse

from rich.console import RenderableType
from rich.text import Text

from ..terminal.clean import clean, printable
from ..terminal.exit_codes import FAILED, FINE
from .inspect import explained_inspection, findings_table, print_answer
from .inspect_report import findings, lint_report
from .options import add_json_option, add_step_options
from .run_config import new_config


def lint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `lint`."""
    add_step_options(parser)
    add_json_option(parser)


def lint_command(options: argparse.Namespace) -> int:
    """Prints likely mistakes in the layout; returns 0 without findings, 1 with some. Raises Invalid."""
    config = new_config(options)
    inspection, explained = explained_inspection(config)
    report = lint_report(inspection, findings(inspection), explained)
    shown = clean(report).findings
    tables: list[RenderableType] = [findings_table(shown) if shown else Text(f"{config.preset}: no findings")]
    problems = filter(None, (inspection.inspected.problem, explained.problem))
    tables += [Text(printable(problem), "red") for problem in problems]
    print_answer(report, tables, options.json, None)
    return FAILED if shown else FINE
