"""The `shardtui` command. Heavy imports wait until the command that needs them runs."""

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from ...engine.base.invalid import Invalid
from ...engine.base.suggestion import suggestion
from ...engine.origins.request import Step
from ...engine.spec.preset_reader import load_preset
from ...engine.wire import run_directory
from ..terminal.clean import warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED, REFUSED
from ..terminal.splash import COMPLETING
from .options import add_options
from .parser import Parser, Version
from .run import attach, client_for, has_terminal, run
from .run_config import compared, explained, new_config, planned, sampling, set_words, settings_of_options


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code. `arguments`: without the program's name, by default from sys.argv."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # instead of failing on what the locale cannot encode
    if COMPLETING in os.environ:
        from .completion import complete

        complete(_parser(*COMMANDS))
    try:
        given = _with_command(_text(arguments))
        options = _parser(given[0]).parse_args(given, argparse.Namespace(offers_runs=not arguments))
        return COMMANDS[options.command].run(options)
    except Invalid as error:
        warn(*error.problems)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout once more
        return FAILED


def _with_command(arguments: list[str]) -> list[str]:
    """Adds the default command `run` if none is given. Raises Invalid for an unknown command."""
    if arguments and arguments[0] in (*COMMANDS, "-h", "--help", "--version"):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        maybe = suggestion(arguments[0], COMMANDS)
        raise Invalid(f"{arguments[0]}: no such command: {maybe}choose from {', '.join(COMMANDS)}")
    return ["run", *arguments]


def _profile(options: argparse.Namespace) -> int:
    from .profile import TraceProgram, profile

    about = TraceProgram(options.mesh or {}, options.hlo or "", options.topology or "")
    return profile(options.subject, options.diff, options.profiled, about, options.json)


def _completion(options: argparse.Namespace) -> int:
    from .completion import script

    print(script(options.shell), end="")
    return FINE


def _train(options: argparse.Namespace) -> int:
    from .train import train

    if options.steps is None and not options.resume:
        raise Invalid("train: --steps N is missing: give the number of steps to train")
    return asyncio.run(train(*client_for(options), options.json))


def _engine(options: argparse.Namespace) -> int:
    from .engine import become_engine

    return become_engine(options)


def _replay(options: argparse.Namespace) -> int:
    from .replay import replay

    return replay(options)


def _tour(options: argparse.Namespace) -> int:
    from .tour import tour

    return tour()


def _ls(options: argparse.Namespace) -> int:
    from .ls import list_runs

    list_runs(options.json)
    return FINE


def _data(options: argparse.Namespace) -> int:
    from .data import prepare

    return prepare(options)


def _stop(options: argparse.Namespace) -> int:
    from ..client.engine_client import EngineClient
    from .train import stop

    return asyncio.run(stop(EngineClient(run_directory.find(options.run))))


def _verify(options: argparse.Namespace) -> int:
    from .verify import verify

    return verify(run_directory.find(options.run), options.json)


def _export(options: argparse.Namespace) -> int:
    from .export import export

    run = run_directory.find(options.run)
    return export(run, options.directory, options.from_step, options.dtype, options.json)


def _sample(options: argparse.Namespace) -> int:
    from .sample import sample

    return sample(options.run, sampling(options), options.json)


def _presets(options: argparse.Namespace) -> int:
    if options.action:
        from .preset_exchange import exchange

        return exchange(options)
    from .ls import list_presets

    list_presets(new_config(options), options.json)
    return FINE


def _inspect(options: argparse.Namespace) -> int:
    from .inspect import inspect, inspect_hlo

    if options.hlo or options.mesh:
        if not (options.hlo and options.mesh):
            raise Invalid("--hlo FILE and --mesh AXIS=SIZE,… belong together: give both, or neither")
        return inspect_hlo(options.hlo, options.mesh, options.json, options.svg)
    if options.diff:
        load_preset(options.diff)
    return inspect(new_config(options), options.json, options.svg, options.diff)


def _plan(options: argparse.Namespace) -> int:
    from .plan import Asked, plan
    from .search_options import place_of, searched

    shown = options.accounts, options.shows_memory, options.fit, dict(options.price), options.json
    search, place = searched(options), place_of(options.save) if options.save else None
    train = ["shardtui", "train", "--model", options.model or "nano", *set_words(settings_of_options(options))]
    return plan(*planned(options), Asked(not options.estimate, search, place, train, *shown))


def _compare(options: argparse.Namespace) -> int:
    from .compare import compare

    run_directory.runtime_directory()  # an unusable one is refused before anything is created
    config, presets = compared(options)
    return compare(config, presets, options.measured, options.json)


def _explain(options: argparse.Namespace) -> int:
    from .explain import explain, show

    program = explained(options)
    if options.name or options.save or options.saved or options.json or options.text or not has_terminal():
        return explain(program, options.name, options.save, options.saved, options.json)
    return show(program)


def _why(options: argparse.Namespace) -> int:
    from .explain import why

    step = Step(config=new_config(options), rules=dict(options.tried), compiles=options.compile)
    return why(step, options.name, options.json)


def _lint(options: argparse.Namespace) -> int:
    from .inspect import lint

    return lint(new_config(options), options.json)


class Command(NamedTuple):
    """One command of `shardtui`."""

    run: Callable[[argparse.Namespace], int]
    """Runs it and returns the exit code."""
    summary: str
    """One line for `--help`."""
    example: str
    """Arguments of an example for `--help`."""


COMMANDS = {
    "run": Command(
        run,
        "start a run and open the UI; plain `shardtui` does the same, but first lists earlier runs, if there are any",
        "--model gpt2 --preset fsdp",
    ),
    "tour": Command(_tour, "learn sharding in short lessons, on a live run of eight simulated devices", ""),
    "attach": Command(attach, "open the UI on a run; without a name, on the newest one that is training", "nano-1"),
    "replay": Command(
        _replay,
        "play the recorded events of a run in the UI, without an engine and without commands",
        "nano-1 --speed 10",
    ),
    "engine": Command(
        _engine,
        "engine process for one host of a multi-host run; started by a launcher on every host",
        "--run big --coordinator host0:1234 --num-processes 4 --process-id 0",
    ),
    "ls": Command(_ls, "list the runs", "--json"),
    "stop": Command(_stop, "stop a run after its current step; its state is saved", "nano-1"),
    "train": Command(_train, "train without the UI", "--steps 100 --preset dp --switch 50:fsdp"),
    "sample": Command(
        _sample, "print text sampled from the model of a run that trains", "nano-1 --prompt 'def ' --tokens 100"
    ),
    "export": Command(
        _export, "write a checkpoint as a model that transformers loads: safetensors and config.json", "nano-1 out"
    ),
    "verify": Command(_verify, "check every checkpoint of a run; exit 1 if one is damaged", "nano-1"),
    "presets": Command(
        _presets,
        "list the presets and whether each fits these devices; import MaxText's rules as one, or export them",
        "--model gpt2 --devices 16",
    ),
    "inspect": Command(
        _inspect, "show arrays, collectives and memory of a preset, without training", "--preset fsdp-tp2 --diff fsdp"
    ),
    "plan": Command(
        _plan, "rank presets for a TPU slice, without having one", "--model gpt2-xl --topology v5p:4x4x4 --preset fsdp"
    ),
    "compare": Command(_compare, "measure presets in one run, and compare with predictions", "dp fsdp tp --steps 50"),
    "profile": Command(
        _profile, "show where the time of a step goes, in a run or in any trace of the profiler", "nano-1 --steps 5"
    ),
    "lint": Command(_lint, "find likely mistakes in the layout of a preset; exit 1 if there are any", "--preset tp"),
    "why": Command(
        _why,
        "show why arrays and collectives of a preset are as they are, down to the rule or line to change",
        "mlp.up --preset fsdp-tp2 --try mlp=",
    ),
    "explain": Command(
        _explain,
        "show why a program of your own is laid out as it is, and why it needs its collectives, without compiling it",
        "train.py:program --mesh data=4,model=2",
    ),
    "data": Command(
        _data,
        "tokenize documents with all cores, for training on them",
        "prepare texts tokens --tokenizer tokenizer.json",
    ),
    "completion": Command(_completion, "print the script for tab completion in a shell", "bash"),
}


def _text(arguments: list[str]) -> list[str]:
    """Returns the arguments. Raises Invalid if one is not text: no message or file of a run could quote it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise Invalid(
                f"{argument}: not valid text in the encoding {sys.getfilesystemencoding()}: rename the file or "
                "directory"
            )
    return arguments


def _parser(*wanted: str) -> argparse.ArgumentParser:
    """Returns the parser; only the `wanted` commands get their options, so that the UI starts sooner."""
    parser = Parser(
        prog="shardtui",
        description="Train a sharded transformer, see how every array is laid out, and switch parallelism live.",
        epilog="The engine is a process of its own: closing the UI or losing the terminal does not stop a run.",
    )
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, summary, example) in COMMANDS.items():
        options = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: shardtui {name} {example}".rstrip(),
        )
        if name in wanted:
            add_options(name, options)
    return parser
