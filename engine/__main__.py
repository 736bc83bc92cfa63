"""`python -m shardtui.engine serve RUN_DIRECTORY [RESTART [MEMBERSHIP]]`: trains one run, from its newest checkpoint if
it has one; with MEMBERSHIP as one of several processes on this machine.
`… host RUN CONFIG RESTART MEMBERSHIP`: as one of several hosts; which one may show only when they have met.
`… presets CONFIG`: says which presets fit here.  `… inspect CONFIG [PRESET …]`: describes the step under each preset.
`… verify RUN_DIRECTORY`: checks every checkpoint.
`… plan CONFIG WHERE [PRESET …]`: estimates presets on a slice.  `… compile CONFIG TOPOLOGY PRESET`: compiles one.
`… search CONFIG TOPOLOGY`: estimates every mesh of a slice.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from .base.advice import problems_in
from .base.append import append_regular
from .base.versions import versions
from .distributed.agreement import corpus_fact, differences, facts, fingerprints
from .distributed.cluster import Cluster
from .distributed.seal import Seal
from .planning import cache as plan_cache
from .planning.parent import end_with_asker
from .planning.ranking import Board
from .spec.config import SIMULATED_DEVICES, Invalid, Membership, Restart, RunConfig, UserModel, problems_of
from .spec.preset import Preset, load_preset, load_presets, name_of
from .spec.topology import load_topology
from .training.forks import leave_to_parent
from .training.watchdog import Watchdog
from .wire import protocol
from .wire.custody import Custody
from .wire.event_log import EventLog
from .wire.inbox import Inbox
from .wire.protocol import (
    CorpusInfo,
    EngineReady,
    EngineStarted,
    EngineStopped,
    Event,
    Failed,
    HostInfo,
    HostsLost,
    Inspection,
    PresetInfo,
    PresetListing,
    Stalled,
    Stop,
)
from .wire.run_directory import RunDirectory, create, find, state_home
from .wire.server import Answer, Server

if TYPE_CHECKING:
    import jax

    from .distributed.jax_cluster import JaxCluster
    from .models.task import Task
    from .models.user_model import OwnBatches
    from .training.data import Batches

YIELD_SECONDS = 10.0
"""By which another process that was told to stop ends later than process 0, which says why."""
FAREWELL_SECONDS = 0.2
"""For viewers to be told."""


def main() -> int:
    match sys.argv[1:]:
        case ["serve", directory]:
            return serve(RunDirectory(Path(directory)), Restart())
        case ["serve", directory, restart]:
            return serve(RunDirectory(Path(directory)), _decoded(restart, Restart))
        case ["serve", directory, restart, membership]:
            run, how = RunDirectory(Path(directory)), _decoded(restart, Restart)
            found = _decoded(membership, Membership)
            connect = partial(_connect, found, run, how)
            return _answered(follow, run, how, connect) if found.process else serve(run, how, connect)
        case ["host", run, config, restart, membership]:
            about = _decoded(config, RunConfig | None), _decoded(restart, Restart), _decoded(membership, Membership)
            return _answered(host, run, *about)
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


def _decoded(text: str, kind: Any) -> Any:
    return msgspec.json.decode(text, type=kind)


def _config(text: str) -> RunConfig:
    return _decoded(text, RunConfig)


def _connect(membership: Membership, directory: RunDirectory, restart: Restart) -> Seal:
    """Raises Invalid."""
    from .distributed.joining import connect, seal

    config = restart.config or directory.config
    connect(membership, config)
    return seal(membership, directory, config)


def serve(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal] | None = None) -> int:
    """Trains until it is over. What happens stands in the directory's events; stdout and stderr are its log.

    `connect` joins the other processes, where there are some, of which this is the first, and gives their seal.
    """
    inbox = Inbox()
    try:
        lock = directory.hold()
        directory.clear_coordinators()
        server = Server(directory.socket, inbox.put)
        log = EventLog(directory.events, server.publish)
    except (Invalid, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    leave_to_parent(lambda: [lock.fileno(), log.descriptor, *server.descriptors])
    custody = Custody(directory, lock, lambda: inbox.put(Stop()))
    config = restart.config or directory.config
    log.append(EngineStarted(protocol=protocol.VERSION, pid=os.getpid(), config=config))
    cluster = Cluster()
    watchdog = Watchdog(
        inbox,
        log.append,
        lambda: inbox.put(Stop()),
        config.stop_seconds,
        _user_directory(config),
        lambda: cluster.stalled_elsewhere(),
    )

    def publish(event: Event) -> None:
        watchdog.note(event)
        log.append(event)

    server.start()
    try:
        cluster = _joined(directory, connect, log, inbox) if connect else cluster
        done = _train(directory, restart, publish, inbox, cluster, server.answer_with)
        if custody.is_lost:
            log.append(Failed(problems=[f"{custody.problem}; the run ended after step {done:,}"], refused=False))
            return 1
        reason = "finished" if done == config.steps else "signalled" if watchdog.is_signalled else "stopped"
        log.append(EngineStopped(step=done, reason=reason))
        return 0
    except Invalid as error:
        log.append(Failed(problems=list(error.problems), refused=True))
        cluster.close()
        return 2
    except Exception as error:
        traceback.print_exc()
        cluster.fail(error)
        log.append(Failed(problems=problems_in(error), refused=False))
        return 1
    finally:
        server.close()
        with suppress(Invalid):  # the directory of the sockets is not ours alone any more
            directory.clear_coordinators()
        lock.close()


def host(run: str, config: RunConfig | None, restart: Restart, membership: Membership) -> int:
    """The engine of one host. The first one makes the run, or finds it where there is no `config`. Raises Invalid."""
    from .distributed.joining import connect, number, seal

    about = config or restart.config
    assert about, "one of them is always given"
    is_joined = connect(membership, about)
    directory = RunDirectory(state_home() / run)
    joined = partial(seal, membership, directory, about)
    if number():
        return follow(directory, msgspec.structs.replace(restart, config=about), joined)
    directory = create(about) if config else find(run)
    print(f"shardtui: `shardtui attach {directory.name}` shows it, {directory.log} is its log", file=sys.stderr)
    try:
        with append_regular(directory.log) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    except OSError as error:
        raise Invalid(f"{directory.log}: cannot be written: {error.strerror}: remove it") from error
    return serve(directory, restart, joined if is_joined else None)


def follow(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal]) -> int:
    """Does what the first process decides, until it is over. Raises Invalid."""
    seal = connect()

    from .distributed.jax_cluster import JaxCluster

    cluster, inbox = JaxCluster(seal, stop=lambda: None, lost=_end_without), Inbox()

    def stop() -> None:
        inbox.put(Stop())
        cluster.ask_to_stop()

    config = restart.config or directory.config

    def report(event: Event) -> None:
        if isinstance(event, Stalled):
            cluster.tell_stall(event.where)

    def publish(event: Event) -> None:
        watchdog.note(event)
        cluster.tell_stall("")

    limit = None if config.stop_seconds is None else config.stop_seconds + YIELD_SECONDS
    watchdog = Watchdog(inbox, report, stop, limit, _user_directory(config))
    try:
        _train(directory, restart, publish, inbox, cluster, lambda _: None)
        return 0
    except Invalid:
        cluster.close()
        raise
    except Exception as error:
        traceback.print_exc()
        cluster.fail(error)
        return 1


def _joined(directory: RunDirectory, connect: Callable[[], Seal], log: EventLog, inbox: Inbox) -> "JaxCluster":
    """As the first of several processes. Raises Invalid."""
    seal = connect()

    from .distributed.jax_cluster import JaxCluster

    def lost(gone: Mapping[int, str]) -> None:
        log.append(HostsLost(reasons=dict(gone), hosts=cluster.statuses()))
        log.append(Failed(problems=cluster.obituary(gone), refused=False))
        time.sleep(FAREWELL_SECONDS)
        os._exit(1)

    cluster = JaxCluster(seal, lambda: inbox.put(Stop()), lost)
    return cluster


def _user_directory(config: RunConfig) -> str | None:
    return config.model.directory if isinstance(config.model, UserModel) else None


def _end_without(gone: Mapping[int, str]) -> None:
    print(*(f"shardtui: process {process} is lost: {why}" for process, why in gone.items()), sep="\n", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def _answered(answer: Callable[..., int | None], *arguments: object) -> int:
    try:
        with redirect_stdout(sys.stderr):  # a user's model may print
            return answer(*arguments) or 0
    except Invalid as error:
        print(*(f"shardtui: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return 2


def _print(answer: Struct) -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.buffer.write(protocol.encode_json(answer) + b"\n")


def verify(directory: str) -> None:
    """Prints what a check of the run's checkpoints finds, as JSON. Uses one CPU device, whatever else is there."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunDirectory(Path(directory))
    config = run.config

    from etils import epath

    from .checkpoint import directory as checkpoint

    place = checkpoint.Place(epath.Path(run.checkpoints(config)))
    _print(checkpoint.verify(place, config))


def presets(config: RunConfig) -> None:
    """Prints every preset as it stands on the devices of `config`, as JSON."""
    devices, task = _devices_and_task(config)
    _, infos, problems = _listed(config, task, devices)
    listing = PresetListing(devices=len(devices), presets=infos, problems=problems)
    _print(listing)


def inspect(config: RunConfig, *others: str) -> None:
    """Prints an `Inspection` of the preset of `config` and of each other one, as JSON, a line each."""
    devices, task = _devices_and_task(config)

    from .parallel.mesh import describe_device
    from .program.inspection import inspect_program
    from .program.program import compile_program, place

    problems = problems_of(config)
    if problems:
        raise Invalid(*problems)
    for name in (config.preset, *others):
        placement = place(task, load_preset(name), devices)
        inspection = Inspection(
            devices=[describe_device(device) for device in devices],
            versions=versions(),
            flops_per_step=task.flops_per_step,
            compiled=compile_program(task, placement).description,
            inspected=inspect_program(task, placement),
        )
        _print(inspection)


def plan(config: RunConfig, where: str, *names: str) -> None:
    """Prints a `Board` of estimates, as JSON: of these presets, or of all, on a slice or on so many devices at hand."""
    topology = None if where.isdecimal() else load_topology(where)
    os.environ["JAX_PLATFORMS"] = "cpu"  # no device is touched

    from .models.task import Task
    from .planning.estimate import estimate_row

    task = Task(config, "tpu" if topology else config.platform or "cpu")
    presets = [load_preset(name) for name in names] or load_presets()[0]
    devices = topology.devices if topology else int(where)
    rows = [estimate_row(task, preset, devices, topology) for preset in presets]
    _print(Board(model=config.model_name, topology=where, rows=rows))


def search(config: RunConfig, where: str) -> None:
    """Prints a `Board` of the best meshes that none of the presets has, as JSON."""
    topology = load_topology(where)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from .models.task import Task
    from .planning.search import search

    rows = search(Task(config, "tpu"), topology, load_presets()[0])
    _print(Board(model=config.model_name, topology=where, rows=rows))


def compile_one(config: RunConfig, where: str, name: str) -> None:
    """Prints a `Cost`, what the TPU compiler says of a preset on a slice, as JSON."""
    end_with_asker()
    topology, preset = load_topology(where), load_preset(name)
    cost = plan_cache.kept(config, preset, where)
    if cost is None:
        os.environ["JAX_PLATFORMS"] = "cpu"

        from .models.task import Task
        from .planning.ahead_of_time import compile_cost

        cost = compile_cost(Task(config, "tpu"), preset, topology)
        try:
            plan_cache.keep(config, preset, where, cost)
        except OSError as error:
            print(f"shardtui: the answer cannot be kept for the next time: {error}", file=sys.stderr)
    _print(cost)


def _train(
    directory: RunDirectory,
    restart: Restart,
    publish: Callable[[Event], None],
    inbox: Inbox,
    cluster: Cluster,
    answer_with: Callable[[Answer], None],
) -> int:
    """Checks everything, says that it is ready, and trains. Raises Invalid before any device work. Returns the number
    of steps done."""
    hosts = cluster.meet()
    config = restart.config or directory.config
    given, _ = cluster.together(lambda: _known(config, directory.presets))
    if different := _differences(cluster, hosts, facts(config, restart, versions(), given)):
        text = cluster.together(lambda: _text_fact(config))
        raise Invalid(*different, *_differences(cluster, hosts, text))
    devices, task = cluster.together(lambda: _devices_and_task(config, cluster.count))

    from etils import epath

    from .checkpoint.directory import Place, array_types
    from .checkpoint.manifest import edits
    from .checkpoint.saver import Saver
    from .parallel.mesh import describe_device, fallback
    from .planning.preview import weigh
    from .program.compiler import Compiler
    from .program.memory import keep_freed_blocks, limit
    from .training.loop import Loop
    from .training.profiler import Profiler

    if devices[0].platform == "cpu" and not config.low_memory:
        keep_freed_blocks()

    def read() -> "tuple[Batches | OwnBatches, CorpusInfo]":
        problems = problems_of(config)
        try:
            found = _batches(config, task)
        except Invalid as error:
            problems += error.problems
        else:
            if not problems:
                return found
        raise Invalid(*problems, *_asked_for(config, _listed(config, task, devices, directory.presets)[1]))

    batches, corpus = cluster.together(read)
    if different := _differences(cluster, hosts, corpus_fact(corpus)):
        raise Invalid(*different)
    within = None if config.checkpoints.directory else directory.path
    place = Place(epath.Path(directory.checkpoints(config)), within)
    saver = Saver(place, config, task, corpus, devices, cluster, publish, inbox.wake)
    problems: list[str] = []
    edited: list[str] = []
    origin = saver.newest(restart.step)
    if origin is not None:
        edited = edits(directory.config, config, origin) if cluster.process == 0 else []
        problems += origin.problems_with(config, array_types(task), corpus, devices[0].platform, restart)
        ahead = tuple(switch for switch in config.switches if switch.step >= origin.step)
        config = msgspec.structs.replace(config, preset=origin.preset, switches=ahead)
    if restart.preset is not None:
        config = msgspec.structs.replace(config, preset=restart.preset)
    known, infos, preset_problems = _listed(config, task, devices, directory.presets)
    problems += _asked_for(config, infos)
    if problems:
        raise Invalid(*problems)
    if restart.config is not None and (cluster.process == 0 or directory.holder() is None):
        directory.write_config(restart.config)  # each host goes on with what it was given itself
    answer_with(partial(weigh, task, devices))
    is_text = task.own_batches is None
    publish(
        EngineReady(
            versions=versions(),
            devices=[describe_device(device) for device in devices],
            simulated=devices[0].platform == "cpu" and len(devices) > 1,
            memory_limit=limit(devices, config.device_memory),
            warnings=[*fallback(devices, config.platform), *edited],
            dtype=task.dtype,
            parameters=task.parameters,
            padding_parameters=task.model.padding_parameters,
            tokens_per_step=config.training.tokens_per_step if is_text else config.training.batch_size,
            counted="tokens" if is_text else "examples",
            flops_per_step=task.flops_per_step,
            corpus=corpus,
            presets=infos,
            preset_problems=preset_problems,
            hosts=hosts if cluster.count > 1 else [],
        )
    )
    traces = directory.profile / f"process-{cluster.process}" if cluster.process else directory.profile
    profiler, compiler = (
        Profiler(traces, publish),
        Compiler(task, known, devices, directory.presets, config.keep_programs),
    )
    loop = Loop(config, batches, compiler, saver, profiler, publish, inbox, cluster)
    return loop.run(origin, restart.profile)


def _differences(cluster: Cluster, hosts: Sequence[HostInfo], own: Mapping[str, str]) -> list[str]:
    """What each process was given is compared, and not sent."""
    found = cluster.gather(fingerprints(own, cluster.fingerprint), dict[str, str])
    return differences(hosts, cluster.process, own, found, cluster.fingerprint)


def _text_fact(config: RunConfig) -> dict[str, str]:
    """Where the model is ours: a user's function is not run before all else is known to be the same."""
    from .training.data import read_corpus

    return {} if isinstance(config.model, UserModel) else corpus_fact(read_corpus(config.data).describe())


def _batches(config: RunConfig, task: "Task") -> "tuple[Batches | OwnBatches, CorpusInfo]":
    """And where they come from: the user's own, or text. Raises Invalid."""
    if task.own_batches:
        return task.own_batches, task.own_batches.describe()

    from .training.data import Batches, read_corpus

    corpus = read_corpus(config.data)
    batches = Batches(corpus, config.training.batch_size, config.training.seq_len, config.seed)
    return batches, corpus.describe()


def _devices_and_task(config: RunConfig, processes: int = 1) -> "tuple[list[jax.Device], Task]":
    """Loads jax, and begins with its devices. Raises Invalid."""
    simulated = config.devices or SIMULATED_DEVICES
    if simulated % processes:
        raise Invalid(
            f"--devices {simulated} cannot be shared evenly by {processes} processes: give a multiple of that"
        )

    import jax

    jax.config.update("jax_num_cpu_devices", simulated // processes)
    if config.platform:
        jax.config.update("jax_platforms", config.platform)

    from .models.task import Task
    from .parallel.mesh import find_devices
    from .program.compilation_cache import use_compilation_cache

    use_compilation_cache()
    devices = find_devices(config.devices)
    return devices, Task(config, devices[0].platform)


def _listed(
    config: RunConfig, task: "Task", devices: "list[jax.Device]", made: Path | None = None
) -> tuple[dict[str, Preset], list[PresetInfo], list[str]]:
    """As `_known`, and how each stands on the devices."""
    from .program.program import describe_preset

    known, problems = _known(config, made)
    return known, [describe_preset(task, preset, devices) for preset in known.values()], problems


def _known(config: RunConfig, made: Path | None) -> tuple[dict[str, Preset], list[str]]:
    """The built-in presets, the user's, those `made` in the run, and those that it names by file; and what cannot be
    read."""
    found, problems = load_presets(made)
    known = {preset.name: preset for preset in found}
    for name in (config.preset, *(switch.preset for switch in config.switches), *config.preset_files):
        if name not in known:
            preset = load_preset(name)
            known[preset.name] = preset
    return known, problems


def _asked_for(config: RunConfig, infos: list[PresetInfo]) -> list[str]:
    """Why presets that the run names cannot be."""
    names = {name_of(name) for name in (config.preset, *(switch.preset for switch in config.switches))}
    return [problem for info in infos if info.name in names for problem in info.problems]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a compilation that nobody awaits any more must not hold the process
