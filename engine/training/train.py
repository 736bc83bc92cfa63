"""Checks everything before any device work, then runs the training loop."""

from collections.abc import Callable
from functools import partial

import jax
import msgspec
from etils import epath

from ..base.machine import versions
from ..base.user_error import UserError, refuse
from ..checkpoint.directory import CheckpointDirectory, array_types
from ..checkpoint.manifest import Manifest, edited_settings
from ..checkpoint.saver import Saver
from ..distributed.agreement import corpus_facts, differences, facts
from ..distributed.cluster import Cluster
from ..distributed.outcomes import Failure
from ..models.task import Task
from ..parallel.mesh import describe_device, fallback
from ..planning.automatic_remat import fitting_remats, usable
from ..planning.estimate import preview
from ..program.compiler import Compiler
from ..program.memory import keep_freed_blocks, limit
from ..program.presets import describe_presets, known_presets, problems_of_requested
from ..program.setup import devices_and_task
from ..spec.checks import problems_of
from ..spec.config import Restart, RunConfig, UserModel
from ..spec.model_choice import HF
from ..spec.preset_reader import name_of
from ..wire.events import EngineReady, Event
from ..wire.inbox import Inbox
from ..wire.run_directory import RunDirectory
from ..wire.server import Answer
from .device_check import coverage
from .fewer_devices import Fitted, fit
from .inputs import Inputs, inputs_of, text_inputs
from .loop import Loop
from .profiler import Profiler
from .tools import Tools


def train(
    directory: RunDirectory,
    restart: Restart,
    publish: Callable[[Event], None],
    inbox: Inbox,
    cluster: Cluster,
    answer_with: Callable[[Answer], None],
) -> int:
    """Checks everything, reports that it is ready, and trains. Returns the number of steps done. `publish` receives
    every event, `answer_with` what answers previews of presets. Raises UserError before any device work. Long because
    the order of the checks stands here."""
    cluster.meet()
    config = restart.config or directory.config
    _compare_inputs(cluster, directory, restart, config)
    devices, task = cluster.run_on_all(lambda: devices_and_task(config, cluster.count, restart.attempt))
    if devices[0].platform == "cpu" and not config.low_memory:
        keep_freed_blocks()
    inputs = cluster.run_on_all(lambda: _checked_inputs(config, task, devices, directory))
    if different := differences(cluster, corpus_facts(inputs.corpus, inputs.held_out_corpus)):
        raise UserError(*different)

    within = None if config.checkpoints.directory else directory.path
    place = CheckpointDirectory(epath.Path(directory.checkpoints(config)), within)
    refusal = Failure if restart.is_again else UserError  # the engine before may end yet
    saver = Saver(place, config, task, inputs.corpus, cluster, publish, inbox.wake, refusal)
    origin = saver.newest(restart.step)
    problems = (
        origin.problems_with(config, array_types(task), inputs.corpus, devices[0].platform, restart) if origin else []
    )
    edited = edited_settings(directory.config, config, origin) if origin and cluster.process == 0 else []
    config = _resumed_config(config, origin, restart)
    fitted = fit(config, task, devices, restart, directory.presets, cluster) if restart.is_again else Fitted(config)
    if fitted.config.training != config.training:
        task = Task(fitted.config, devices[0].platform)
    config, saver.replaced, devices = fitted.config, fitted.replaced, devices[: fitted.devices]
    known, infos, preset_problems = describe_presets(config, task, devices, directory.presets, restart.is_again)
    problems += problems_of_requested(config, infos)
    refuse(problems)
    if restart.config is not None and (cluster.process == 0 or directory.holder() is None):
        directory.write_config(restart.config)  # each host keeps the configuration that it was given itself

    answer_with(partial(preview, task, devices))
    is_drawn = config.model_name.startswith(HF) and config.weights is None and origin is None
    drawn = f"{config.model_name} has no weights (*.safetensors): its parameters are drawn at random"
    publish(
        EngineReady(
            versions=versions(),
            devices=[describe_device(device) for device in devices],
            simulated=devices[0].platform == "cpu" and len(devices) > 1,
            memory_limit=limit(devices, config.device_memory),
            warnings=[
                *fallback(devices, config.platform),
                *edited,
                *([drawn] if is_drawn else []),
                *fitted.warnings,
                *coverage(task, known[name_of(config.preset)], devices),
            ],
            dtype=task.model.dtype,
            parameters=task.parameters,
            padding_parameters=task.model.padding_parameters,
            tokens_per_step=task.tokens_per_step,
            counted=task.counted,
            flops_per_step=task.flops_per_step,
            corpus=inputs.corpus,
            held_out=inputs.held_out_corpus,
            presets=infos,
            preset_problems=preset_problems,
            hosts=list(cluster.hosts) if cluster.count > 1 else [],
        )
    )
    traces = directory.profile / f"process-{cluster.process}" if cluster.process else directory.profile
    remats = capacity = None
    if config.has_automatic_remat:
        capacity = usable(cluster.all_gather(limit(devices, config.device_memory), int | None), config.margin)
        remats = partial(fitting_remats, task, devices, capacity)
    compiler = Compiler(task, known, devices, directory.presets, remats, capacity, inbox.wake)
    profiler = Profiler(traces, publish, cluster, restart.profile_every)
    tools = Tools(config, compiler, saver, profiler, cluster, inbox, publish, restart.attempt is not None)
    return Loop(tools, inputs.batches, inputs.held_out).run(origin, restart.profile)


def _compare_inputs(cluster: Cluster, directory: RunDirectory, restart: Restart, config: RunConfig) -> None:
    given, _ = cluster.run_on_all(lambda: known_presets(config, directory.presets))
    if different := differences(cluster, facts(config, restart, versions(), given)):
        is_users = isinstance(config.model, UserModel)  # whose code runs only once all else agrees
        data = cluster.run_on_all(lambda: None if is_users else text_inputs(config))
        text = corpus_facts(data.corpus, data.held_out_corpus) if data else {}
        raise UserError(*different, *differences(cluster, text))


def _checked_inputs(config: RunConfig, task: Task, devices: list[jax.Device], directory: RunDirectory) -> Inputs:
    problems = problems_of(config)
    try:
        found = inputs_of(task)
    except UserError as error:
        problems += error.problems
    else:
        if not problems:
            return found
    raise UserError(
        *problems, *problems_of_requested(config, describe_presets(config, task, devices, directory.presets)[1])
    )


def _resumed_config(config: RunConfig, origin: Manifest | None, restart: Restart) -> RunConfig:
    if origin is not None:
        ahead = tuple(switch for switch in config.switches if switch.step >= origin.step)
        config = msgspec.structs.replace(config, preset=origin.in_place_of or origin.preset, switches=ahead)
    return config if restart.preset is None else msgspec.structs.replace(config, preset=restart.preset)
