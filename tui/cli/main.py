"""The `shardtui` command. Heavy imports wait until the command that needs them runs."""

import argparse
import asyncio
import contextlib
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...engine.spec.config import (
    KEEP_PROGRAMS,
    MOST_PROFILED,
    STOP_SECONDS,
    CheckpointConfig,
    Invalid,
    Membership,
    ModelConfig,
    Restart,
    RunConfig,
    ScheduledSwitch,
    TrainingConfig,
    UserModel,
    choose_model,
    preset_files,
    problems_of,
    with_settings,
    with_user_settings,
)
from ...engine.spec.preset import AXIS_NAME, is_file, load_preset, name_of
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory, state_home
from ..terminal.clean import printable, warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED, REFUSED
from .arguments import Parser, Version

if TYPE_CHECKING:
    from ..app import ShardtuiApp
    from ..client.engine_client import EngineClient

MOST_DEVICES = 10**6
T = TypeVar("T")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale cannot encode is no reason to fail
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help", "--version"):
        arguments = ["run", *arguments]
    try:
        options = _parser(arguments[0]).parse_args(_text(arguments))
        return COMMANDS[options.command][0](options)
    except Invalid as error:
        warn(*error.problems)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout once more
        return FAILED


def _run(options: argparse.Namespace) -> int:
    _need_terminal("shardtui train --steps N")
    client, restart = _client_for(options)
    return _show(client, starts=True, restart=restart)


def _attach(options: argparse.Namespace) -> int:
    directory = run_directory.find(options.run)
    _need_terminal(f"tail -f {directory.events}")
    return _show(_client(directory))


def _train(options: argparse.Namespace) -> int:
    from .train import train

    if options.steps is None and not options.resume:
        raise Invalid("train: --steps N is missing: how many steps to make")
    return asyncio.run(train(*_client_for(options), options.json))


def _engine(options: argparse.Namespace) -> int:
    """Becomes the engine: what launched this command signals and awaits that."""
    membership = Membership(
        coordinator=options.coordinator,
        processes=options.num_processes,
        process=options.process_id,
        secret_file=options.secret_file and str(Path(options.secret_file).absolute()),
        insecure=options.insecure,
    )
    problems = _membership_problems(membership)
    if not (options.run_name or options.resume):
        problems.append("engine: --run NAME is missing: the same on every host; --resume NAME to go on with one")
    config, restart = None, Restart(profile=options.profile)
    try:
        if not options.resume:
            config = _config(options)
        elif (state_home() / options.resume).is_dir():
            restart = _resumed(run_directory.find(options.resume), options)
        else:  # process 0 refuses; another host may be new to the run, and its options have to say the same
            options.run_name = options.resume
            restart = _restart(options, _config(options))
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    if problems:
        raise Invalid(*problems)
    about = (msgspec.json.encode(part).decode() for part in (config, restart, membership))
    command = [sys.executable, "-P", "-m", "shardtui.engine", "host", options.resume or options.run_name, *about]
    os.execv(sys.executable, command)


def _membership_problems(membership: Membership) -> list[str]:
    given = (membership.coordinator, membership.processes, membership.process)
    if given == (None, None, None):
        return []
    if None in given:
        return ["--coordinator, --num-processes and --process-id go together: give all three, or none on a TPU pod"]
    host, _, port = (membership.coordinator or "").rpartition(":")
    count, number = membership.processes or 0, membership.process or 0
    checks = [
        (host and port.isdecimal() and 0 < int(port) < 2**16, f"--coordinator {membership.coordinator}: not HOST:PORT"),
        (count >= 1, f"--num-processes {count}: at least 1"),
        (0 <= number < count, f"--process-id {number}: from 0 to {count - 1}, a different one on each host"),
    ]
    return [text for holds, text in checks if not holds]


def _ls(options: argparse.Namespace) -> int:
    from .ls import list_runs

    list_runs(options.json)
    return FINE


def _stop(options: argparse.Namespace) -> int:
    from ..client.engine_client import EngineClient
    from .train import stop

    return asyncio.run(stop(EngineClient(run_directory.find(options.run))))


def _verify(options: argparse.Namespace) -> int:
    from .verify import verify

    return verify(run_directory.find(options.run), options.json)


def _presets(options: argparse.Namespace) -> int:
    from .ls import list_presets

    list_presets(_config(options), options.json)
    return FINE


def _inspect(options: argparse.Namespace) -> int:
    from .inspect import inspect, inspect_hlo

    if options.hlo or options.mesh:
        if not (options.hlo and options.mesh):
            raise Invalid("--hlo FILE and --mesh data=4,model=2 go together: give both, or none")
        return inspect_hlo(options.hlo, options.mesh, options.json, options.svg)
    if options.diff:
        load_preset(options.diff)
    return inspect(_config(options), options.json, options.svg, options.diff)


def _plan(options: argparse.Namespace) -> int:
    from .plan import plan

    config, presets = _planned(options)
    return plan(config, options.topology, presets, not options.estimate, options.search, options.json)


def _compare(options: argparse.Namespace) -> int:
    from .compare import compare

    run_directory.runtime_directory()  # refused before anything is made
    options.preset, options.run_name = None, None
    named = list(map(name_of, options.presets))
    problems = [] if options.measured >= 1 else [f"--steps {options.measured}: at least 1"]
    files = tuple(_absolute(name) for name in options.presets if is_file(name))
    problems += _same_names(options.presets)
    try:
        config = _config(options)
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    if problems:
        raise Invalid(*problems)
    checkpoints = CheckpointConfig(every_minutes=None, at_end=False)
    config = msgspec.structs.replace(config, run="compare", checkpoints=checkpoints, preset_files=files)
    return compare(config, named, options.measured, options.json)


def _same_names(presets: list[str]) -> list[str]:
    """Of presets that a run would not tell apart."""
    places = {name_of(name): name for name in presets}
    return [
        f"preset {name}: {places[name_of(name)]} has the same name: rename its file"
        for name in dict.fromkeys(presets)
        if name != places[name_of(name)]
    ]


def _lint(options: argparse.Namespace) -> int:
    from .inspect import lint

    return lint(_config(options), options.json)


COMMANDS = {
    "run": (_run, "a new run in the UI; this is also what no command means"),
    "attach": (_attach, "return to a run, by default the newest living one"),
    "engine": (_engine, "the engine of one host of several, for a launcher to start on each; `attach` shows the run"),
    "ls": (_ls, "list the runs"),
    "stop": (_stop, "end a run after its current step"),
    "train": (_train, "a new run without the UI"),
    "verify": (_verify, "check every checkpoint of a run; exit 1 where one is damaged"),
    "presets": (_presets, "list the presets and whether each fits these devices"),
    "inspect": (_inspect, "arrays, collectives and memory of one preset, without training"),
    "plan": (_plan, "rank presets on a TPU slice that you need not hold, by formula and by the TPU compiler"),
    "compare": (_compare, "measure presets one after the other in one run, beside what is predicted of them"),
    "lint": (_lint, "what is likely wrong with one preset; exit 1 when there are findings"),
}


def _text(arguments: list[str]) -> list[str]:
    """Raises Invalid where an argument holds bytes that are no text: no message and no file of a run could name it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise Invalid(f"{argument}: not text in the encoding {sys.getfilesystemencoding()}: rename what it names")
    return arguments


def _parser(command: str) -> argparse.ArgumentParser:
    """Only that command has its options: the first frame waits for no others."""
    parser = Parser(
        prog="shardtui",
        description="Train a sharded transformer, see how every array is laid out, and switch parallelism live.",
        epilog="The engine is a process of its own: closing the UI or losing the terminal does not stop a run.",
    )
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        options = commands.add_parser(name, help=text)
        if name == command:
            _add_options(name, options)
    return parser


def _add_options(command: str, parser: argparse.ArgumentParser) -> None:
    if command == "attach":
        parser.add_argument("run", nargs="?", metavar="RUN")
    if command in ("stop", "verify"):
        parser.add_argument("run", metavar="RUN")
    if command in ("run", "train", "engine", "presets", "inspect", "lint"):
        _add_name_options(parser)
    if command in ("run", "train", "engine", "presets", "inspect", "lint", "compare"):
        _add_run_options(parser)
    if command == "plan":
        _add_plan_options(parser)
    if command in ("run", "train", "engine", "presets", "inspect", "lint", "compare", "plan"):
        _add_model_options(parser)
    if command in ("run", "train", "engine"):
        _add_checkpoint_options(parser)
        _add_engine_options(parser)
    if command in ("run", "train"):
        parser.add_argument(
            "--processes", type=int, metavar="N", help="share the simulated devices among N processes, as N hosts would"
        )
    if command == "engine":
        _add_host_options(parser)
    if command == "inspect":
        _add_inspect_options(parser)
    if command == "compare":
        _add_compare_options(parser)
    if command in ("train", "engine"):
        _add_schedule_options(parser)
    if command not in ("run", "attach", "stop", "engine"):
        parser.add_argument("--json", action="store_true", help="JSON on stdout, for programs")


def _add_host_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="of process 0, which serves it; not needed on a TPU pod or with Slurm",
    )
    add("--num-processes", type=int, metavar="N", help="how many there are, one a host")
    add("--process-id", type=int, metavar="I", help="which one this is, from 0")
    add(
        "--secret-file",
        metavar="FILE",
        help="the run's secret, the same on every host; default: $SHARDTUI_SECRET, or made beside the checkpoints",
    )
    add("--insecure", action="store_true", help="no secret: for a network that nobody else reaches")


def _add_schedule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, metavar="N", help="stop after N steps, those before a --resume included")
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        type=_scheduled_switch,
        metavar="STEP:PRESET",
        help="go on under PRESET once STEP steps are done; may be given several times",
    )


def _add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "presets",
        nargs="*",
        metavar="PRESET",
        help="names or .toml files; default: all that fit, but the pitfalls: " + ", ".join(preset_files("parallelism")),
    )
    parser.add_argument(
        "--steps",
        type=int,
        dest="measured",
        default=20,
        metavar="N",
        help="steps to measure under each, besides those of the warm-up; default 20",
    )


def _add_inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--diff", metavar="PRESET", help="what differs between the preset and this other one")
    parser.add_argument("--svg", metavar="FILE", help="write the answer as a picture instead")
    parser.add_argument("--hlo", metavar="FILE", help="the collectives of a compiled module's text, from any program")
    parser.add_argument("--mesh", type=_mesh, metavar="AXIS=SIZE,…", help="with --hlo: the mesh it was compiled for")


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    presets = ", ".join(preset_files("parallelism"))
    add = parser.add_argument
    add("--topology", required=True, metavar="T", help="the slice: a TPU generation and its chips, such as v5p:4x4x4")
    add(
        "--preset",
        action="append",
        default=[],
        metavar="P",
        help=f"a name or a .toml file; may be given several times; default: all but the pitfalls of {presets}",
    )
    add("--search", action="store_true", help="besides, try every mesh of the slice, and compile the best ones")
    add("--estimate", action="store_true", help="by formula alone, at once: compile nothing")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--profile",
        type=_steps_to_trace,
        metavar="STEPS",
        help="trace so many steps, after the first ones, into the run directory, for xprof",
    )
    add(
        "--low-memory",
        action="store_true",
        default=None,
        help="a switch saves the state first and then frees what it has moved, leaf by leaf",
    )
    add(
        "--keep-programs",
        type=_bytes,
        metavar="BYTES",
        help=f"host memory for compiled programs, by estimate; default {KEEP_PROGRAMS:g}; the least recently used go",
    )
    add(
        "--stop-timeout",
        type=float,
        metavar="S",
        help=f"end S seconds after being told to stop, saved or not; default {STOP_SECONDS:g}, 0 for no limit",
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--resume", metavar="RUN", help="go on with a run from its newest good checkpoint, on any preset and devices")
    add("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step instead")
    add("--other-data", action="store_true", help="with --resume: also where the text is not the one from before")
    add("--checkpoint-every", type=int, metavar="N", help="save every N steps; a run is saved at its end in any case")
    add("--checkpoint-minutes", type=float, metavar="M", help="save every M minutes; default 10, 0 for never")
    add("--checkpoint-dir", metavar="PATH", help="keep them in PATH/RUN, also gs://…; default: with the run")
    add("--keep", type=int, metavar="K", help="checkpoints to keep besides the best; default 3")


def _add_name_options(parser: argparse.ArgumentParser) -> None:
    presets = ", ".join(preset_files("parallelism"))
    parser.add_argument("--preset", metavar="P", help=f"a name or a .toml file, default dp; {presets}")
    parser.add_argument(
        "--run", metavar="NAME", dest="run_name", help="a name for the run; default MODEL-1, MODEL-2, …"
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        metavar="PATH",
        help="a text file or a directory of them; default: the standard library's sources",
    )
    add("--seed", type=int, metavar="N", help="of parameters, data order and dropout; default 0")
    add(
        "--devices",
        type=int,
        metavar="N",
        help="how many to use; of simulated ones, how many to make (default 8)",
    )
    add("--device-memory", type=_bytes, metavar="BYTES", help="refuse presets predicted to need more on a device")
    add("--platform", metavar="P", help="cpu, gpu or tpu; default: what jax finds")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    known = ", ".join(preset_files("models"))
    add("--model", metavar="M", help=f"default nano; {known}; or MODULE:FUNCTION, FILE.py:FUNCTION of yours")
    add("--batch-size", type=int, metavar="N", help="sequences, or examples, in the global batch")
    add("--seq-len", type=int, metavar="N", help="tokens in a sequence")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value of the model or the training, such as layers=8, remat=true, learning_rate=3e-4; an argument of "
        "a function of yours",
    )


def _bytes(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16e9") from error


def _steps_to_trace(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROFILED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_PROFILED:,}")
    return int(text)


def _scheduled_switch(text: str) -> ScheduledSwitch:
    step, colon, preset = text.partition(":")
    if not colon or not step.isdecimal() or not preset:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:PRESET, such as 10:fsdp")
    return ScheduledSwitch(int(step), _absolute(preset))


def _mesh(text: str) -> dict[str, int]:
    try:
        sizes = {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        sizes = {}
    named = all(AXIS_NAME.fullmatch(axis) for axis in sizes)
    if not sizes or not named or min(sizes.values()) < 1 or math.prod(sizes.values()) > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2")
    return sizes


def _config(options: argparse.Namespace) -> RunConfig:
    """Of a new run. All that can be checked without jax is checked here. Raises Invalid with every problem."""
    name = options.model or "nano"
    preset = _absolute(options.preset or "dp")
    problems = _preset_problems(preset, options)
    try:
        model = choose_model(name, _settings(options))
        config = RunConfig(
            run=options.run_name or run_directory.free_name(model.run_name),
            model_name=model.name,
            model=model.model,
            training=model.training,
            preset=preset,
            seed=options.seed or 0,
            **_where_and_when(options),
        )
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    problems += problems_of(config)
    if problems:
        raise Invalid(*problems)
    return config


def _planned(options: argparse.Namespace) -> tuple[RunConfig, list[str]]:
    """What to plan, and the presets by name or file, none where none was named. Raises Invalid with every problem.

    A preset that was named has to fill the slice. Why the model cannot be laid out so is told by the board.
    """
    from ...engine.spec.topology import load_topology

    problems: list[str] = []
    name, presets = options.model or "nano", list(dict.fromkeys(map(_absolute, options.preset)))
    model = _attempt(problems, choose_model, name, _settings(options))
    topology = _attempt(problems, load_topology, options.topology)
    found = list(filter(None, [_attempt(problems, load_preset, preset) for preset in presets]))
    names = [preset.name for preset in found]
    problems += [f"--preset {name}: {names.count(name)} are called so: rename one" for name in _twice(names)]
    for preset in found:
        misfit = preset.size_problem(topology.devices) if topology else None
        problems += [*preset.problems, *filter(None, [misfit])]
    config = (
        RunConfig(run="plan", model_name=model.name, model=model.model, training=model.training, preset="dp")
        if model
        else None
    )
    problems += problems_of(config) if config else []
    if problems or config is None:
        raise Invalid(*problems)
    return config, presets


def _twice(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _attempt(problems: list[str], load: Callable[..., T], *arguments: object) -> T | None:
    """What `load` gives; None where that cannot be, and why is added to `problems`."""
    try:
        return load(*arguments)
    except Invalid as error:
        problems.extend(error.problems)
        return None


def _resumed(directory: RunDirectory, options: argparse.Namespace) -> Restart:
    """How a run goes on. Raises Invalid with every problem."""
    config = directory.config
    if (holder := directory.holder()) and holder.is_alive:
        raise Invalid(
            f"run {directory.name}: {holder.words} trains it: `shardtui attach {directory.name}` shows it, "
            f"`shardtui stop {directory.name}` ends it"
        )
    if holder:
        raise Invalid(f"run {directory.name}: {holder.words} holds {directory.lock}: end it: `fuser` names it")
    given = {"--model": options.model, "--seed": options.seed, "--run": options.run_name}
    problems = [
        f"{flag} {value}: a run that goes on keeps its own: leave it out, or begin a new run"
        for flag, value in given.items()
        if value is not None
    ]
    preset = _absolute(options.preset) if options.preset else None
    problems += _preset_problems(preset, options)
    try:
        model, training = _set_anew(config, _settings(options))
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    config = msgspec.structs.replace(config, model=model, training=training, **_where_and_when(options, config))
    problems += problems_of(config)
    if problems:
        raise Invalid(*problems)
    return _restart(options, config)


def _restart(options: argparse.Namespace, config: RunConfig) -> Restart:
    preset = _absolute(options.preset) if options.preset else None
    return Restart(
        step=options.from_step, preset=preset, other_data=options.other_data, profile=options.profile, config=config
    )


def _set_anew(config: RunConfig, settings: tuple[str, ...]) -> tuple[ModelConfig | UserModel, TrainingConfig]:
    """Model and training of a run that goes on, with `settings` put over them. Raises Invalid."""
    if isinstance(config.model, UserModel):
        return with_user_settings(config.model, config.training, settings)
    tables = {"summary": "", "model": msgspec.to_builtins(config.model)}
    tables["training"] = msgspec.to_builtins(config.training)
    preset = with_settings(tables, settings, f"--set {' '.join(settings)}")
    return preset.model, preset.training


def _where_and_when(options: argparse.Namespace, before: RunConfig | None = None) -> dict[str, Any]:
    """What may be chosen anew when a run goes on; what is not given stays as it was `before`."""
    given = {
        "data": options.data and str(Path(options.data).absolute()),
        "devices": options.devices,
        "platform": options.platform,
        "processes": getattr(options, "processes", None),
        "device_memory": options.device_memory,
        "low_memory": getattr(options, "low_memory", None),
        "keep_programs": getattr(options, "keep_programs", None),
        "steps": getattr(options, "steps", None),
        "switches": tuple(getattr(options, "switch", ())) or None,
        "checkpoints": _checkpoints(options, before.checkpoints if before else CheckpointConfig()),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    stop = getattr(options, "stop_timeout", None)
    return changes if stop is None else changes | {"stop_seconds": stop or None}


def _checkpoints(options: argparse.Namespace, before: CheckpointConfig) -> CheckpointConfig:
    if "resume" not in options:  # a command that trains nothing
        return before
    directory = options.checkpoint_dir
    given = {
        "every_steps": options.checkpoint_every,
        "every_minutes": options.checkpoint_minutes,
        "keep": options.keep,
        "directory": directory and (directory if "://" in directory else str(Path(directory).absolute())),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if options.checkpoint_minutes == 0:
        changes["every_minutes"] = None
    return msgspec.structs.replace(before, **changes)


def _settings(options: argparse.Namespace) -> tuple[str, ...]:
    given = {"batch_size": options.batch_size, "seq_len": options.seq_len}
    return (*(f"{key}={value}" for key, value in given.items() if value is not None), *options.set)


def _preset_problems(preset: str | None, options: argparse.Namespace) -> list[str]:
    switches: list[ScheduledSwitch] = getattr(options, "switch", [])
    others: list[str] = getattr(options, "presets", [])
    named = dict.fromkeys((*filter(None, [preset]), *others), "")
    for switch in switches:
        named.setdefault(switch.preset, f"--switch {switch.step}:{switch.preset}: ")
    problems: list[str] = []
    for name, flag in named.items():
        try:
            load_preset(name)
        except Invalid as error:
            problems += (f"{flag}{problem}" for problem in error.problems)
    return problems


def _absolute(preset: str) -> str:
    """A preset file is found again when the run goes on from another directory."""
    with contextlib.suppress(RuntimeError):  # a ~user that there is not: told when it is read
        return str(Path(preset).expanduser().absolute()) if is_file(preset) else preset
    return preset


def _client(directory: RunDirectory) -> "EngineClient":
    """Raises Invalid where the run's history cannot be read."""
    from ...engine.wire.event_log import last_seq
    from ..client.engine_client import EngineClient

    last_seq(directory.events)
    return EngineClient(directory)


def _client_for(options: argparse.Namespace) -> "tuple[EngineClient, Restart]":
    """Of a run that goes on or of a new one, and how."""
    run_directory.runtime_directory()  # refused before anything is made
    if options.resume:
        directory = run_directory.find(options.resume)
        return _client(directory), _resumed(directory, options)
    if options.from_step is not None or options.other_data:
        raise Invalid("--from-step and --other-data are of a run that goes on: add --resume RUN")
    return _client(run_directory.create(_config(options))), Restart(profile=options.profile)


def _show(client: "EngineClient", starts: bool = False, restart: Restart | None = None) -> int:
    from ..app import ShardtuiApp

    app = ShardtuiApp(client, starts, restart)
    asyncio.run(_run_app(app))
    with contextlib.suppress(OSError):  # there may be no terminal any more
        for line in app.last_words():
            print(printable(line), file=sys.stderr)
    return app.return_code or FINE


async def _run_app(app: "ShardtuiApp") -> None:
    from ..terminal.ending import Ending

    Ending(app.exit)
    await app.run_async()


def _need_terminal(instead: str) -> None:
    """The UI draws on a terminal that it can control. Raises Invalid where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid(f"the UI needs a terminal, and stdin or stdout is none: use `{instead}`")
    encoding = sys.stderr.encoding
    if "●".encode(encoding, "replace") == b"?":
        raise Invalid(f"the UI draws with characters that {encoding} lacks: set LC_ALL=C.UTF-8, or use `{instead}`")
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise Invalid(f"the UI needs a terminal that can move its cursor, and TERM is dumb or unset: use `{instead}`")
