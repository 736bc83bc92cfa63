"""The `shardtui` command: reads its arguments and runs what they ask for."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from ...engine.base.encoding import not_text
from ...engine.base.output import say
from ...engine.base.user_error import UserError, suggestion
from ..terminal import FAILED, INTERRUPTED, REFUSED
from ..terminal.splash import COMPLETING
from .parser import Parser, Version


class Command(NamedTuple):
    summary: str
    """One line for `--help`."""
    example: str
    """Arguments of an example for `--help`."""
    module: str = ""
    """The file with its `NAME_options(parser)` and `NAME_command(options)`; empty if it has the command's name."""


COMMANDS = {
    "run": Command(
        "start a run and open the UI; plain `shardtui` does the same, but first lists earlier runs, if there are any",
        "--model gpt2 --preset fsdp",
    ),
    "tour": Command("learn sharding in short lessons, on a live run of eight simulated devices", "", "run"),
    "attach": Command(
        "open the UI on a run, also on another host; without a name, on the newest one that is training",
        "tpu-vm:nano-1",
        "run",
    ),
    "stream": Command("what `attach HOST:RUN` runs on HOST: events to stdout, commands from stdin", "nano-1"),
    "replay": Command(
        "play the recorded events of a run in the UI, without an engine and without commands",
        "nano-1 --speed 10",
        "run",
    ),
    "engine": Command(
        "engine process for one host of a multi-host run; started by a launcher on every host",
        "--run big --coordinator host0:1234 --num-processes 4 --process-id 0",
    ),
    "ls": Command("list the runs", "--json", "runs"),
    "runs": Command("watch the runs of this host and of others, through ssh; enter opens one", "tpu-vm-1 tpu-vm-2"),
    "rm": Command("delete ended runs, with their checkpoints", "nano-1 nano-2", "runs"),
    "rename": Command("give an ended run another name", "nano-1 baseline", "runs"),
    "stop": Command("stop a run after its current step; its state is saved", "nano-1", "train"),
    "train": Command("train without the UI", "--steps 100 --preset dp --switch 50:fsdp"),
    "sample": Command("print text sampled from the model of a run that trains", "nano-1 --prompt 'def ' --tokens 100"),
    "export": Command(
        "write a checkpoint as a model that transformers loads: safetensors and config.json",
        "nano-1 out",
        "checkpoints",
    ),
    "verify": Command("check every checkpoint of a run; exit 1 if one is damaged", "nano-1", "checkpoints"),
    "metrics": Command(
        "write the curves of a run for other tools: CSV, TensorBoard, Weights & Biases",
        "nano-1 --tensorboard logs --follow",
    ),
    "presets": Command(
        "list the presets and whether each fits these devices; import MaxText's rules as one, or export them",
        "--model gpt2 --devices 16",
    ),
    "inspect": Command(
        "show arrays, collectives and memory of a preset, without training", "--preset fsdp-tp2 --diff fsdp"
    ),
    "plan": Command(
        "rank presets for TPU slices or GPUs, without having them",
        "--model gpt2-xl --topology v5p:4x4x4 --preset fsdp",
        "plan_options",
    ),
    "compare": Command("measure presets in one run, and compare with predictions", "dp fsdp tp --steps 50"),
    "profile": Command(
        "show where the time of a step goes, in a run or in any trace of the profiler", "nano-1 --steps 5"
    ),
    "numbers": Command(
        "show the numbers in a run's arrays as last measured: sizes, updates, NaN, and the load of experts",
        "nano-1 --array blocks.mlp.up.kernel",
    ),
    "lint": Command(
        "find likely mistakes in the layout of a preset; exit 1 if there are any", "--preset tp", "inspect"
    ),
    "why": Command(
        "show why arrays and collectives of a preset are as they are, down to the rule or line to change",
        "mlp.up --preset fsdp-tp2 --try mlp=",
        "explain",
    ),
    "explain": Command(
        "show why a program of your own is laid out as it is, and why it needs its collectives, without compiling it",
        "train.py:program --mesh data=4,model=2",
    ),
    "watch": Command("run any JAX program, unmodified, and show it as a run", "train.py --lr 3e-4"),
    "data": Command(
        "tokenize documents with all cores, for training on them", "prepare texts tokens --tokenizer tokenizer.json"
    ),
    "doctor": Command("check this machine, and with --train what training needs on its devices", "--train"),
    "completion": Command("print the script for tab completion in a shell", "bash"),
}

HINTS = {
    "resume": "`shardtui --resume RUN` resumes one",
    "list": "did you mean ls?",
    "delete": "did you mean rm?",
    "mv": "did you mean rename?",
}
"""For commands that other programs have."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code. `arguments`: without the program's name, by default from sys.argv."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # instead of failing on what the locale cannot encode
    try:
        if COMPLETING in os.environ:
            from .completion import complete

            complete(_parser(*COMMANDS.keys() & os.environ.get("COMP_LINE", "").split()))
        given = _with_command(_text(arguments))
        parser, options = _parser(given[0]), argparse.Namespace(offers_runs=not arguments)
        if given[0] in ("run", "train"):
            from .run_file import parse  # other commands start without it

            options = parse(parser, given, options)
        else:
            options = parser.parse_args(given, options)
        return _function(options.command, "command")(options)
    except UserError as error:
        say(*error.problems)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout once more
        return FAILED


def _with_command(arguments: list[str]) -> list[str]:
    """Adds the default command `run` if none is given. Raises UserError for an unknown command."""
    if arguments and arguments[0] in (*COMMANDS, "-h", "--help", "--version"):
        return arguments
    if arguments and not arguments[0].startswith("-") and not arguments[0].endswith(".toml"):
        maybe = f"{HINTS[arguments[0]]}: " if arguments[0] in HINTS else suggestion(arguments[0], COMMANDS)
        raise UserError(f"{arguments[0]}: no such command: {maybe}choose from {', '.join(COMMANDS)}")
    return ["run", *arguments]


def _text(arguments: list[str]) -> list[str]:
    """Returns the arguments. Raises UserError if one is not text: no message or file of a run could quote it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise not_text(argument)
    return arguments


def _parser(*wanted: str) -> argparse.ArgumentParser:
    """Returns the parser of the `wanted` commands, so that the UI starts sooner, or of the names of all commands."""
    parser = Parser(
        prog="shardtui",
        description="Train a sharded transformer, see how every array is laid out, and switch parallelism live.",
        epilog="The engine is a process of its own: closing the UI or losing the terminal does not stop a run.",
    )
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    names = COMMANDS.keys() & wanted
    for name, (summary, example, _) in COMMANDS.items():
        if names and name not in names and COMPLETING not in os.environ:
            continue
        options = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: shardtui {name} {example}".rstrip(),
        )
        if name in wanted:
            _function(name, "options")(options)
    return parser


def _function(command: str, kind: str) -> Callable[..., Any]:
    return getattr(import_module(f".{COMMANDS[command].module or command}", __package__), f"{command}_{kind}")
