"""`shardtui watch`: runs any JAX program as Python would, and shows it as a run."""

import argparse
from typing import NoReturn

from ...engine.base.user_error import UserError
from ...engine.spec.watch_request import run_watched
from ...engine.wire.run_directory import checked_name


def watch_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run", metavar="NAME", dest="run_name", help="name of the run; default PROGRAM-1, PROGRAM-2, …")
    add(
        "--step",
        metavar="FUNCTION",
        help="the jitted function that is the step; default: the one that takes its own results",
    )
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, and its arguments")
    add("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a script, and its arguments")


def watch_command(options: argparse.Namespace) -> NoReturn:
    arguments = ["-m", *options.module] if options.module else options.program
    if not arguments:
        raise UserError("watch: no program: give what follows `python`, such as train.py --steps 100, or -m train")
    if options.run_name:
        checked_name(options.run_name)
    run_watched(options.run_name, options.step, arguments)
