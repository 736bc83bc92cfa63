"""`shardtui export`: writes a checkpoint as a model that Hugging Face's `transformers` loads."""

import argparse
from pathlib import Path
from typing import get_args

import msgspec

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.exported import Dtype, Exported, ExportRequest
from ...engine.wire import run_directory
from ..client.engine_client import ask_engine
from ..terminal import FINE
from ..terminal.clean import json_line, printable
from .options import add_json_option, add_run_argument


def export_options(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add = parser.add_argument
    add("directory", metavar="DIR", help="the directory to write, a new one")
    add("--from-step", type=int, metavar="N", help="export the checkpoint of this step; default: the newest intact one")
    add(
        "--dtype",
        choices=get_args(Dtype),
        help="default: that of the weights that the run began with, else float32, in which parameters are trained",
    )
    add_json_option(parser)


def export_command(options: argparse.Namespace) -> int:
    run = run_directory.find(options.run)
    if watched := run.watched:
        raise Invalid(watched.refusal)
    out = str(Path(options.directory).expanduser().absolute())
    request = ExportRequest(run=str(run.path), out=out, step=options.from_step, dtype=options.dtype)
    found = msgspec.json.decode(ask_engine("export", request), type=Exported)
    if options.json:
        print(json_line(found))
        return FINE
    count, size = figures.count(found.parameters), figures.size(found.bytes)
    print(printable(f"{found.directory}: {found.architecture}, {count} parameters in {found.dtype}, {size}"))
    print(printable(f"checkpoint of step {found.step:,} of {run.name}; files: {', '.join(found.files)}"))
    if found.tokenizer is None:
        print("no tokenizer: the run's data do not have one; bytes are tokens 0 to 255")
    return FINE
