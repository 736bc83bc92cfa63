"""Runs that have ended, made by writing their event logs."""

import msgspec
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.checkpoints import CheckpointInfo
from shardtui.engine.wire.descriptions import DeviceInfo, PresetInfo
from shardtui.engine.wire.events import CheckpointsKept, EngineStarted, EngineStopped, Event, StepsDone, TrainingStarted
from shardtui.engine.wire.framing import VERSION, encode_json
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.state.losses import Losses

from .conftest import READY, tiny_config

PRESETS = ("dp", "fsdp", "tp", "hsdp")


def losses_of(values: list[float]) -> Losses:
    """Returns the losses of a run whose steps had these values."""
    losses = Losses()
    losses.extend(values)
    return losses


def record(directory: RunDirectory, *events: Event) -> None:
    """Writes the event log of a run."""
    lines = (encode_json(msgspec.structs.replace(event, seq=seq)) for seq, event in enumerate(events, 1))
    directory.events.write_bytes(b"\n".join(lines) + b"\n")


def recorded_run(stem: str = "tiny-1", *more: Event, is_finite: bool = True) -> RunDirectory:
    """Makes a run of four steps under `dp` and a checkpoint, followed by `more` events, by default a clean stop."""
    losses: list[float | None] = [4.0, 3.0, 2.0, 1.0] if is_finite else [None] * 4
    directory = run_directory.create(tiny_config(run=stem))
    presets = [
        PresetInfo(name=name, summary="", teaches="", source="built-in", mesh={"data": 8}, fits=True, problems=[])
        for name in PRESETS
    ]
    devices = [DeviceInfo(number, "cpu", "cpu", 0) for number in range(8)]
    kept = CheckpointInfo(step=4, time=0.0, preset="dp", devices=8, loss=2.0, bytes=1000)
    record(
        directory,
        EngineStarted(protocol=VERSION, pid=1, config=directory.config),
        msgspec.structs.replace(READY, devices=devices, presets=presets),
        TrainingStarted(preset="dp"),
        StepsDone(step=4, losses=losses, step_seconds=[0.1] * 4, input_wait_seconds=0.0),
        CheckpointsKept(checkpoints=[kept]),
        *(more or [EngineStopped(step=4, reason="stopped")]),
    )
    return directory
