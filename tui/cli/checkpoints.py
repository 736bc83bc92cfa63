"""`shardtui verify` checks a run's checkpoints; `shardtui export` writes one as a model for `transformers`."""

import argparse
from typing import get_args

from rich.text import Text

from ...engine.base import formatting
from ...engine.base.output import show
from ...engine.base.user_error import UserError
from ...engine.spec.hf_export import Dtype, Exported, ExportRequest
from ...engine.wire import run_directory
from ...engine.wire.checkpoints import Verification
from ..client.engine_client import ask_engine
from ..terminal import FAILED, FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import plain_table, right, table_console
from . import values
from .options import add_json_option, add_run_argument


def verify_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_json_option(parser)


def verify_command(options: argparse.Namespace) -> int:
    directory = run_directory.find(options.run)
    (found,) = ask_engine(Verification, "verify", str(directory.path))
    if options.json:
        show(json_line(found))
    else:
        _print_table(clean(found), directory.name)
    has_only_bad = not found.checkpoints and bool(found.set_aside)
    return FAILED if has_only_bad or any(checked.problems for checked in found.checkpoints) else FINE


def _print_table(found: Verification, run: str) -> None:
    table = plain_table("", *map(right, ("step", "loss", "size")), "saved under", "result")
    for checked in found.checkpoints:
        info = checked.checkpoint
        loss = info.loss_words if info else ""
        size = formatting.size(info.bytes) if info else ""
        under = f"{info.preset}, {formatting.counted(info.devices, 'device')}" if info else ""
        verdict = "\n".join(checked.problems) or "all files and arrays are intact"
        cells = ("✗" if checked.problems else "✓", f"{checked.step:,}", loss, size, under, verdict)
        table.add_row(*map(Text, cells))
    if found.checkpoints:
        table_console().print(table)
        show(
            "files: SHA-256; arrays: 64-bit digests: an accidental change goes unnoticed with odds of 2⁻⁶⁴; "
            "they are no protection against tampering"
        )
    else:
        show(f"run {run} has no {'intact ' if found.set_aside else ''}checkpoint in {found.directory}")
    if found.set_aside:
        show(f"set aside in {found.directory}: {', '.join(found.set_aside)}")


def export_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add = parser.add_argument
    add("directory", metavar="DIR", help="the directory to write, a new one")
    add("--from-step", type=int, metavar="N", help="export the checkpoint of this step; default: the newest intact one")
    add(
        "--dtype",
        choices=get_args(Dtype),
        help="default: the dtype of the weights that the run began with, else float32, in which parameters are trained",
    )
    add_json_option(parser)


def export_command(options: argparse.Namespace) -> int:
    out = values.place(options.directory, "a model is")
    run = run_directory.find(options.run)
    if watched := run.watched:
        raise UserError(watched.refusal)
    request = ExportRequest(run=str(run.path), out=out, step=options.from_step, dtype=options.dtype)
    (found,) = ask_engine(Exported, "export", request)
    if options.json:
        show(json_line(found))
        return FINE
    count, size = formatting.count(found.parameters), formatting.size(found.bytes)
    show(f"{found.directory}: {found.architecture}, {count} parameters in {found.dtype}, {size}")
    show(f"checkpoint of step {found.step:,} of {run.name}; files: {', '.join(found.files)}")
    if found.tokenizer is None:
        show("no tokenizer: the run's data do not have one; bytes are tokens 0 to 255")
    return FINE
