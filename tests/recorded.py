"""Events of runs, and runs that have ended, made by writing their event logs."""

from pathlib import Path
from typing import Any

import msgspec
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.checkpoints import CheckpointInfo
from shardtui.engine.wire.descriptions import DeviceInfo, PresetInfo
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import Event
from shardtui.engine.wire.framing import VERSION
from shardtui.engine.wire.number_events import ArrayNumbers, ExpertNumbers, NumbersMeasured, ShardNumbers
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.state.losses import Losses

from .conftest import READY, tiny_config

PRESETS = ("dp", "fsdp", "tp", "hsdp")


def started(**fields: Any) -> wire.EngineStarted:
    return wire.EngineStarted(**{"protocol": VERSION, "pid": 7, "config": tiny_config()} | fields)


def steps(last: int, *losses: float | None, seconds: float = 0.1, **fields: Any) -> wire.StepsDone:
    """Steps up to `last`; 0.01 s of the report are a wait for input."""
    values = {"losses": list(losses), "step_seconds": [seconds] * len(losses), "input_wait_seconds": 0.01}
    return wire.StepsDone(step=last, **values | fields)


def switched(from_preset: str = "dp", to_preset: str = "tp", step: int = 3, **fields: Any) -> wire.Switched:
    values = {"arrays": 64, "bytes_moved": 1_500_000, "stall_seconds": 0.031, "compile_seconds": 2.0}
    values |= {"digests_equal": True, "loss_before": 2.0}
    return wire.Switched(from_preset=from_preset, to_preset=to_preset, step=step, **values | fields)


def restored(step: int, *rolled_back: int, preset: str = "tp", seconds: float = 0.5) -> wire.Restored:
    values = {"from_preset": "dp", "from_devices": 8, "arrays": 52, "seconds": seconds, "digests_equal": True}
    return wire.Restored(step=step, preset=preset, rolled_back=list(rolled_back), **values)


def array_numbers(name: str, *rms: float, kind: str = "parameter", **fields: Any) -> ArrayNumbers:
    """The numbers of an array, stacked if it has several values of rms."""
    values: dict[str, Any] = {"is_stacked": len(rms) > 1, "rms": [*rms], "max": [4 * value for value in rms]}
    values |= {"mean": [0.0] * len(rms), "zeros": [0.0] * len(rms), "nonfinite": [0] * len(rms)}
    return ArrayNumbers(name=name, kind=kind, **values | fields)


def numbers_measured(step: int, *arrays: ArrayNumbers, **fields: Any) -> NumbersMeasured:
    return NumbersMeasured(step=step, arrays=[*arrays], **{"preset": "dp", "seconds": 0.25} | fields)


SHARD = ShardNumbers(device=3, ranges=[[1, 2], [0, 64], [128, 256]], rms=32_000.0, max=1e6, nonfinite=12, usual=800.0)
"""A shard of layer 1 that stands out."""
EXPERTS = ExpertNumbers(
    load=[[1.0, 1.0, 1.0, 1.0], [0.0, 2.5, 1.0, 0.5]], dropped=[0.0, 0.125], logits_max=[3.0, 40.0], device_parts=2
)
"""Layer 0 even; of layer 1 an expert without tokens."""


def preset_info(name: str, **fields: Any) -> PresetInfo:
    values = {"summary": "", "teaches": "", "source": "built-in", "mesh": {"data": 8}, "fits": True, "problems": []}
    return PresetInfo(name=name, **values | fields)


def losses_of(values: list[float]) -> Losses:
    losses = Losses()
    losses.extend(values)
    return losses


def record(directory: RunDirectory, *events: Event) -> None:
    lines = (encode_json(msgspec.structs.replace(event, seq=seq)) for seq, event in enumerate(events, 1))
    directory.events.write_bytes(b"\n".join(lines) + b"\n")


def events_in(path: Path) -> list[Event]:
    return [event for events in LogReader(path).read() for event in events]


def recorded_run(stem: str = "tiny-1", *more: Event, is_finite: bool = True) -> RunDirectory:
    """Makes a run of four steps under `dp` and a checkpoint, followed by `more` events, by default a clean stop."""
    directory = run_directory.create(tiny_config(run=stem))
    devices = [DeviceInfo(number, "cpu", "cpu", 0) for number in range(8)]
    kept = CheckpointInfo(step=4, time=0.0, preset="dp", devices=8, loss=2.0, bytes=1000)
    record(
        directory,
        started(config=directory.config),
        msgspec.structs.replace(READY, devices=devices, presets=list(map(preset_info, PRESETS))),
        wire.TrainingStarted(preset="dp"),
        steps(4, *([4.0, 3.0, 2.0, 1.0] if is_finite else [None] * 4), input_wait_seconds=0.0),
        wire.CheckpointsKept(checkpoints=[kept]),
        *(more or [wire.EngineStopped(step=4, reason="stopped")]),
    )
    return directory
