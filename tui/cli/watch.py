"""`shardtui watch`: runs any JAX program as Python would, and shows it as a run."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from msgspec import structs

from ...engine.base.output import note
from ...engine.base.user_error import UserError
from ...engine.spec.watch_request import WatchRequest, environment
from ...engine.wire.run_directory import RunDirectory, checked_name, free_name, state_home
from .run import client_of, require_terminal, show, user_keymap

POLL_SECONDS = 0.1
LONGEST_STEM = 48
NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+|^[._-]+")


def watch_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run", metavar="NAME", dest="run_name", help="name of the run; default PROGRAM-1, PROGRAM-2, …")
    add(
        "--step",
        metavar="FUNCTION",
        help="the jitted function that is the step; default: the one that takes its own results",
    )
    add("--ui", action="store_true", help="open the UI in this terminal, with the program's output in Log")
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, and its arguments")
    add("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a script, and its arguments")


def watch_command(options: argparse.Namespace) -> int:
    arguments = ["-m", *options.module] if options.module else options.program
    if not arguments:
        raise UserError("watch: no program: give what follows `python`, such as train.py --steps 100, or -m train")
    name = checked_name(options.run_name) if options.run_name else free_name(_stem(options))
    request = WatchRequest(run=name, step=options.step)
    if not options.ui:
        os.execve(sys.executable, [sys.executable, *arguments], environment(request))
    return _with_ui(request, arguments)


def _stem(options: argparse.Namespace) -> str:
    """Returns a name for runs of the program: `train` for `Train.py` and for `-m pre.train`."""
    program = options.module[0].rpartition(".")[2] if options.module else Path(options.program[0]).stem
    return NOT_IN_NAMES.sub("-", program.lower()).strip("-")[:LONGEST_STEM] or "program"


def _with_ui(request: WatchRequest, arguments: list[str]) -> int:
    """Starts the program on its own, so that it goes on without the UI, and opens the UI once its step is found."""
    require_terminal("shardtui watch without --ui")
    directory = RunDirectory(state_home() / request.run)
    if directory.exists:
        raise UserError(f"--run {request.run}: this run already exists: choose another name")
    output = state_home() / f"{request.run}-{os.getpid()}.log"
    output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            env=environment(structs.replace(request, output=str(output))),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note(
        f"process {process.pid} runs: waiting for three calls of its step; ctrl-C leaves it, its output is in {output}"
    )
    while not directory.events.exists():
        if process.poll() is not None:
            note(*output.read_text(errors="replace").splitlines())
            output.unlink()
            return process.returncode if process.returncode >= 0 else 128 - process.returncode  # as shells do
        time.sleep(POLL_SECONDS)
    return show(client_of(directory), user_keymap())
