"""Options that several commands share: functions that add them to a command's parser, and the types of their values."""

import argparse
import contextlib
import math
from pathlib import Path

from ...engine.spec.attempt import RESTARTS
from ...engine.spec.config import KEEP_PROGRAMS, MOST_PROFILED, STOP_SECONDS, AnomalyConfig, ScheduledSwitch
from ...engine.spec.preset import AXIS_NAME
from ...engine.spec.preset_files import preset_files
from ...engine.spec.preset_reader import is_file
from .destinations import add_to_option

MAX_DEVICES = 10**6
"""Largest product of the sizes in `--mesh`."""


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_run_argument(parser: argparse.ArgumentParser, is_optional: bool = False) -> None:
    help_, nargs = "name of the run; see `shardtui ls`", "?" if is_optional else None
    parser.add_argument("run", nargs=nargs, metavar="RUN", help=help_)


def add_preset_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", metavar="P", help="name or .toml file; default dp; see `shardtui presets`")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_preset_option(parser)
    add("--run", metavar="NAME", dest="run_name", help="name of the run; default MODEL-1, MODEL-2, …")
    add_data_options(parser)
    _add_evaluation_options(parser)
    _add_anomaly_options(parser)
    add_device_options(parser)
    add_model_options(parser)
    _add_checkpoint_options(parser)
    _add_engine_options(parser)
    add("--sample-every", type=int, metavar="N", help="sample text after every N steps")
    add("--sample-prompt", metavar="TEXT", help="with --sample-every: the text to continue")


def add_local_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=int, metavar="N", help="split the simulated devices among N processes, as on N hosts"
    )
    add_to_option(parser)
    add_supervision_options(parser)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("documents").add_argument
    add(
        "--text-field",
        default="text",
        metavar="F",
        help="field of .json, .jsonl or ArrayRecord, or column of .csv or .parquet; default text",
    )
    add("--end-of-text", metavar="TOKEN", help="the token that ends a document; default: the tokenizer's, if known")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("data").add_argument
    add("--data", metavar="PATH", help="text, documents or tokens; default: the sources of Python's library")
    add("--tokenizer", metavar="FILE", help="tokenize the data first with this tokenizer.json, once; default: bytes")
    add_text_options(parser)
    add("--seed", type=int, metavar="N", help="seed of parameters, data order and dropout; default 0")


def _add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("held-out data").add_argument
    add("--eval-data", metavar="PATH", help="held-out data, whose loss is computed every so often")
    add("--eval-share", type=float, metavar="F", help="hold out this fraction of the data, at its end, such as 0.01")
    add("--eval-every", type=int, metavar="N", help="steps between evaluations of the held-out data; default 100")
    add(
        "--eval-batches", type=int, metavar="K", help="held-out batches in an evaluation, the same each time; default 8"
    )


def _add_anomaly_options(parser: argparse.ArgumentParser) -> None:
    add, config = parser.add_argument_group("spikes and non-finite values").add_argument, AnomalyConfig()
    add(
        "--on-nonfinite",
        choices=("pause", "skip", "stop"),
        help=f"when a loss or gradient is not finite; skip: leave the state as it was; default {config.on_nonfinite}",
    )
    add(
        "--on-spike",
        choices=("log", "pause", "stop"),
        help=f"when the loss or the norm of the gradient is far above its course; default {config.on_spike}",
    )
    add(
        "--numbers-every",
        type=int,
        metavar="N",
        help="measure all arrays and experts every N steps; 0: never; default: after 100, then in 1 %% of the time",
    )


def add_device_options(parser: argparse.ArgumentParser, has_memory: bool = True) -> None:
    add = parser.add_argument_group("devices").add_argument
    add("--devices", type=int, metavar="N", help="devices to use; of simulated ones, to create (default 8)")
    add("--platform", metavar="P", help="cpu, gpu or tpu; default: what jax finds")
    if has_memory:
        add("--device-memory", type=byte_count, metavar="BYTES", help="reject presets predicted to use more per device")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model and training").add_argument
    known = ", ".join(preset_files("models"))
    own = "hf:DIR with a config.json of transformers, or your own MODULE:FUNCTION or FILE.py:FUNCTION"
    add("--model", metavar="M", help=f"one of {known} (default nano), {own}")
    add("--batch-size", type=int, metavar="N", help="sequences (or examples) in the global batch")
    add("--seq-len", type=int, metavar="N", help="tokens per sequence")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a value of the model or the training, such as layers=8, remat=true or learning_rate=3e-4, or an "
        "argument of your own function; repeatable",
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("checkpoints").add_argument
    add(
        "--resume",
        metavar="RUN",
        help="resume a run from its newest good checkpoint, on any preset and number of devices",
    )
    add("--from-step", type=int, metavar="N", help="with --resume: use the checkpoint of this step")
    add("--other-data", action="store_true", help="with --resume: accept different training data than before")
    add("--checkpoint-every", type=int, metavar="N", help="save every N steps; a run is always saved when it ends")
    add("--checkpoint-minutes", type=float, metavar="M", help="save every M minutes; default 10, 0 turns this off")
    add(
        "--checkpoint-dir",
        metavar="PATH",
        help="store checkpoints in PATH/RUN, gs://… included; default: the run directory",
    )
    add("--keep", type=int, metavar="K", help="newest checkpoints to keep, in addition to the best; default 3")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("profiling, memory and checks").add_argument
    add(
        "--profile",
        type=steps_to_trace,
        metavar="STEPS",
        help="trace this many steps, after the first few, and show where their time went; for xprof, the trace is "
        "stored in the run directory",
    )
    add(
        "--profile-every",
        type=minutes,
        metavar="MINUTES",
        help="measure every so often how long the parts of a step take, in 1 %% of the time at most; Time shows it",
    )
    add(
        "--check-devices",
        type=int,
        metavar="N",
        help="compare the replicas of all arrays every N steps; if a device differs, go back to the newest checkpoint",
    )
    add(
        "--low-memory",
        action="store_true",
        default=None,
        help="save the state before a switch, then free each array once it is transferred",
    )
    add(
        "--keep-programs",
        type=byte_count,
        metavar="BYTES",
        help=f"host memory for compiled programs, least recently used dropped first; default {KEEP_PROGRAMS:,}",
    )
    add(
        "--stop-timeout",
        type=float,
        metavar="S",
        help=f"after a request to stop, exit within S seconds, saved or not; default {STOP_SECONDS:g}, 0 for no limit",
    )


def add_supervision_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("restarts").add_argument
    add(
        "--supervise",
        action="store_true",
        help="if a process of the run is lost, start it again from its newest good checkpoint",
    )
    add("--restarts", type=int, metavar="N", help=f"with --supervise: at most N restarts an hour; default {RESTARTS}")
    add(
        "--min-processes",
        type=int,
        metavar="M",
        help="with --supervise: go on with as few as M processes if others cannot be started again; default: all",
    )
    add(
        "--fallback",
        type=_listed_presets,
        default=(),
        metavar="P,Q",
        help="with --supervise: presets to try in this order where the run's does not fit fewer devices; then any",
    )


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, metavar="N", help="stop after N steps in total, including those before --resume"
    )
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        type=_scheduled_switch,
        metavar="STEP:PRESET",
        help="switch to PRESET after STEP steps; repeatable",
    )


def add_step_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    accept_training_options(parser)
    add_device_options(parser)
    add_model_options(parser)


def accept_training_options(parser: argparse.ArgumentParser) -> None:
    """Accepts options without effect here, so that a `train` command works with `inspect` in place of `train`."""
    add = parser.add_argument
    add("--data", help=argparse.SUPPRESS)
    add("--seed", type=int, help=argparse.SUPPRESS)
    add("--run", dest="run_name", help=argparse.SUPPRESS)


def byte_count(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16e9") from error


def steps_to_trace(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROFILED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_PROFILED:,}")
    return int(text)


def number(text: str) -> float:
    """Returns a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def minutes(text: str) -> float:
    found = number(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, such as 10")
    return found


def sizes(text: str) -> dict[str, int]:
    """Reads sizes of mesh axes, `fsdp=-1,tensor=4`. Raises ArgumentTypeError."""
    try:
        return {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2") from error


def mesh(text: str) -> dict[str, int]:
    """Reads the axes of a mesh, `data=4,model=2`. Raises ArgumentTypeError."""
    found = sizes(text)
    if not all(map(AXIS_NAME.fullmatch, found)) or min(found.values()) < 1 or math.prod(found.values()) > MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2")
    return found


def _scheduled_switch(text: str) -> ScheduledSwitch:
    step, colon, preset = text.partition(":")
    if not colon or not step.isdecimal() or not preset:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:PRESET, such as 10:fsdp")
    return ScheduledSwitch(int(step), absolute(preset))


def _listed_presets(text: str) -> tuple[str, ...]:
    return tuple(absolute(name.strip()) for name in text.split(","))


def absolute(preset: str) -> str:
    """Returns a preset file's absolute path, so that a run can resume from another directory; a name is unchanged."""
    with contextlib.suppress(RuntimeError):  # an unknown ~user is reported when the file is read
        return str(Path(preset).expanduser().absolute()) if is_file(preset) else preset
    return preset
