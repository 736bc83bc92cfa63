"""The commands of `shardtui`: what each runs, and how `--help` describes it. Heavy imports wait until one runs."""

import argparse
import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ...engine.base.invalid import Invalid
from ...engine.origins.explanation import StepRequest
from ...engine.spec.preset_reader import load_preset
from ...engine.wire import run_directory
from ..terminal.exit_codes import FINE
from .run import attach, client_for, has_terminal, run
from .run_config import compared, explained, new_config, planned, sampling
from .run_settings import set_words, settings_of_options


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

    step = StepRequest(config=new_config(options), rules=dict(options.tried), compiles=options.compile)
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
        _plan,
        "rank presets for TPU slices or GPUs, without having them",
        "--model gpt2-xl --topology v5p:4x4x4 --preset fsdp",
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
