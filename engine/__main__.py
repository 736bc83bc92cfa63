"""`python -m shardtui.engine serve RUN_DIRECTORY [RESTART]`: trains one run, from its newest checkpoint if it has one.
`… presets CONFIG`: says which presets fit here.  `… inspect CONFIG [PRESET …]`: describes the step under each preset.
`… verify RUN_DIRECTORY`: checks every checkpoint.
`… plan CONFIG WHERE [PRESET …]`: estimates presets on a slice.  `… compile CONFIG TOPOLOGY PRESET`: compiles one.
`… search CONFIG TOPOLOGY`: estimates every mesh of a slice.
"""

import os
import queue
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from . import plan_cache, protocol
from .advice import problems_in
from .asker import end_with_asker
from .board import Board
from .config import SIMULATED_DEVICES, Invalid, Restart, RunConfig, problems_of
from .event_log import EventLog
from .preset import Preset, load_preset, load_presets, name_of
from .protocol import (
    EngineReady,
    EngineStarted,
    EngineStopped,
    Event,
    Failed,
    Inspection,
    PresetInfo,
    PresetListing,
    Stop,
)
from .run_directory import RunDirectory, compilation_cache
from .server import Server
from .topology import load_topology

if TYPE_CHECKING:
    import jax

    from .loop import Command
    from .task import Task

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def main() -> int:
    match sys.argv[1:]:
        case ["serve", directory, *restart]:
            return serve(RunDirectory(Path(directory)), _restart(*restart))
        case ["verify", directory]:
            return _answered(verify, directory)
        case ["presets", config]:
            return _answered(presets, _config(config))
        case ["inspect", config, *others]:
            return _answered(inspect, _config(config), *others)
        case ["plan", config, topology, *names]:
            return _answered(plan, _config(config), topology, *names)
        case ["search", config, topology]:
            return _answered(search, _config(config), topology)
        case ["compile", config, topology, name]:
            return _answered(compile_one, _config(config), topology, name)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def _restart(text: str = "{}") -> Restart:
    return msgspec.json.decode(text, type=Restart)


def _config(text: str) -> RunConfig:
    return msgspec.json.decode(text, type=RunConfig)


def serve(directory: RunDirectory, restart: Restart) -> int:
    """Trains until it is over. What happens stands in the directory's events; stdout and stderr are its log."""
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    signalled: list[int] = []

    def stop(number: int, _: object) -> None:
        signalled.append(number)
        inbox.put(Stop())

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        lock = directory.hold()
        server = Server(directory.socket, inbox.put)
        log = EventLog(directory.events, server.publish)
    except Invalid as error:
        print(error, file=sys.stderr)
        return 2
    config = restart.config or directory.config
    log.append(EngineStarted(protocol=protocol.VERSION, pid=os.getpid(), config=config))
    server.start()
    try:
        done = _train(directory, config, restart, log.append, inbox)
        reason = "finished" if done == config.steps else "signalled" if signalled else "stopped"
        log.append(EngineStopped(step=done, reason=reason))
        return 0
    except Invalid as error:
        log.append(Failed(problems=list(error.problems), refused=True))
        return 2
    except Exception as error:
        traceback.print_exc()
        log.append(Failed(problems=problems_in(error), refused=False))
        return 1
    finally:
        server.close()
        lock.close()


def _answered(answer: Callable[..., None], *arguments: object) -> int:
    try:
        answer(*arguments)
    except Invalid as error:
        print(*(f"shardtui: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return 2
    return 0


def _print(answer: Struct) -> None:
    sys.stdout.buffer.write(protocol.encode_json(answer) + b"\n")


def verify(directory: str) -> None:
    """Prints what a check of the run's checkpoints finds, as JSON. Uses one CPU device, whatever else is there."""
    os.environ["JAX_PLATFORMS"] = "cpu"

    from etils import epath

    from . import checkpoint

    run = RunDirectory(Path(directory))
    place = checkpoint.Place(epath.Path(run.checkpoints(run.config)))
    _print(checkpoint.verify(place))


def presets(config: RunConfig) -> None:
    """Prints every preset as it stands on the devices of `config`, as JSON."""
    devices, task = _devices_and_task(config)
    _, infos, problems = _listed(config, task, devices)
    listing = PresetListing(devices=len(devices), presets=infos, problems=problems)
    _print(listing)


def inspect(config: RunConfig, *others: str) -> None:
    """Prints an `Inspection` of the preset of `config` and of each other one, as JSON, a line each."""
    devices, task = _devices_and_task(config)

    from .inspection import inspect_program
    from .mesh import describe_device
    from .model import flops_per_token
    from .program import compile_program, place

    problems = problems_of(config)
    if problems:
        raise Invalid(*problems)
    for name in (config.preset, *others):
        placement = place(task, load_preset(name), devices)
        inspection = Inspection(
            devices=[describe_device(device) for device in devices],
            versions=_versions(),
            flops_per_step=config.training.tokens_per_step * flops_per_token(config.model, config.training.seq_len),
            compiled=compile_program(task, placement).description,
            inspected=inspect_program(task, placement),
        )
        _print(inspection)


def plan(config: RunConfig, where: str, *names: str) -> None:
    """Prints a `Board` of estimates, as JSON: of these presets, or of all, on a slice or on so many devices at hand."""
    topology = None if where.isdecimal() else load_topology(where)
    os.environ["JAX_PLATFORMS"] = "cpu"  # no device is touched

    from .estimate import estimate_row
    from .task import Task

    task = Task(config, "tpu" if topology else config.platform or "cpu")
    presets = [load_preset(name) for name in names] or load_presets()[0]
    devices = topology.devices if topology else int(where)
    rows = [estimate_row(task, preset, devices, topology) for preset in presets]
    _print(Board(model=config.model_name, topology=where, rows=rows))


def search(config: RunConfig, where: str) -> None:
    """Prints a `Board` of the best meshes that none of the presets has, as JSON."""
    topology = load_topology(where)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from .search import search
    from .task import Task

    rows = search(Task(config, "tpu"), topology, load_presets()[0])
    _print(Board(model=config.model_name, topology=where, rows=rows))


def compile_one(config: RunConfig, where: str, name: str) -> None:
    """Prints a `Cost`, what the TPU compiler says of a preset on a slice, as JSON."""
    end_with_asker()
    topology, preset = load_topology(where), load_preset(name)
    cost = plan_cache.kept(config, preset, where)
    if cost is None:
        os.environ["JAX_PLATFORMS"] = "cpu"

        from .plan import compile_cost
        from .task import Task

        cost = compile_cost(Task(config, "tpu"), preset, topology)
        try:
            plan_cache.keep(config, preset, where, cost)
        except OSError as error:
            print(f"shardtui: the answer cannot be kept for the next time: {error}", file=sys.stderr)
    _print(cost)


def _versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: version(name) for name in PACKAGES}}


def _train(
    directory: RunDirectory,
    config: RunConfig,
    restart: Restart,
    publish: Callable[[Event], None],
    inbox: "queue.SimpleQueue[Command]",
) -> int:
    """Checks everything, says that it is ready, and trains. Raises Invalid before any device work.

    Returns the number of steps done.
    """
    devices, task = _devices_and_task(config)

    from etils import epath

    from .checkpoint import Place
    from .compiler import Compiler
    from .data import Batches, read_corpus
    from .loop import Loop
    from .memory import keep_freed_blocks, limit
    from .mesh import describe_device, fallback
    from .model import flops_per_token, parameter_count
    from .profiler import Profiler
    from .saver import Saver

    if devices[0].platform == "cpu" and not config.low_memory:
        keep_freed_blocks()
    problems = problems_of(config)
    corpus = batches = None
    try:
        corpus = read_corpus(config.data)
        batches = Batches(corpus, config.training.batch_size, config.training.seq_len, config.seed)
    except Invalid as error:
        problems += error.problems
    if problems or corpus is None or batches is None:
        raise Invalid(*problems, *_asked_for(config, _listed(config, task, devices)[1]))
    text = corpus.describe()
    place = Place(epath.Path(directory.checkpoints(config)))
    saver = Saver(place, config, task, text, devices, publish, lambda: inbox.put(None))
    origin = saver.newest(restart.step)
    if origin is not None:
        problems += origin.problems_with(config, text, devices[0].platform, restart)
        ahead = tuple(switch for switch in config.switches if switch.step >= origin.step)
        config = msgspec.structs.replace(config, preset=origin.preset, switches=ahead)
    if restart.preset is not None:
        config = msgspec.structs.replace(config, preset=restart.preset)
    known, infos, preset_problems = _listed(config, task, devices)
    problems += _asked_for(config, infos)
    if problems:
        raise Invalid(*problems)
    if restart.config is not None:
        directory.write_config(restart.config)
    tokens = config.training.tokens_per_step
    publish(
        EngineReady(
            versions=_versions(),
            devices=[describe_device(device) for device in devices],
            simulated=devices[0].platform == "cpu" and len(devices) > 1,
            memory_limit=limit(devices, config.device_memory),
            warnings=fallback(devices, config.platform),
            dtype=task.dtype,
            parameters=parameter_count(config.model),
            padding_parameters=(config.model.vocab_rows - config.model.vocab) * config.model.embed,
            tokens_per_step=tokens,
            flops_per_step=tokens * flops_per_token(config.model, config.training.seq_len),
            corpus=text,
            presets=infos,
            preset_problems=preset_problems,
        )
    )
    profiler = Profiler(directory.profile, publish)
    loop = Loop(config, batches, Compiler(task, known, devices), saver, profiler, publish, inbox)
    return loop.run(origin, restart.profile)


def _devices_and_task(config: RunConfig) -> "tuple[list[jax.Device], Task]":
    """Loads jax; the number of simulated devices has to be known before."""
    os.environ["JAX_NUM_CPU_DEVICES"] = str(config.devices or SIMULATED_DEVICES)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compilation_cache()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if config.platform:
        os.environ["JAX_PLATFORMS"] = config.platform

    from .mesh import find_devices
    from .task import Task

    devices = find_devices(config.devices)
    return devices, Task(config, devices[0].platform)


def _listed(
    config: RunConfig, task: "Task", devices: "list[jax.Device]"
) -> tuple[dict[str, Preset], list[PresetInfo], list[str]]:
    """The built-in presets, the user's, and those that the run names by file; how each stands; what cannot be read."""
    found, problems = load_presets()
    known = {preset.name: preset for preset in found}
    for name in (config.preset, *(switch.preset for switch in config.switches), *config.preset_files):
        if name not in known:
            preset = load_preset(name)
            known[preset.name] = preset
    return known, [_info(preset, task, devices) for preset in known.values()], problems


def _info(preset: Preset, task: "Task", devices: "list[jax.Device]") -> PresetInfo:
    from .program import place

    problems: list[str] = []
    try:
        place(task, preset, devices)
    except Invalid as error:
        problems = list(error.problems)
    return PresetInfo(
        name=preset.name,
        summary=preset.summary,
        teaches=preset.teaches,
        source=preset.source,
        mesh={} if preset.size_problem(len(devices)) else preset.sizes(len(devices)),
        fits=not problems,
        problems=problems,
    )


def _asked_for(config: RunConfig, infos: list[PresetInfo]) -> list[str]:
    """Why presets that the run names cannot be."""
    names = {name_of(name) for name in (config.preset, *(switch.preset for switch in config.switches))}
    return [problem for info in infos if info.name in names for problem in info.problems]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a compilation that nobody awaits any more must not hold the process
