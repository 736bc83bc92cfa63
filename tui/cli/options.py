"""Options that several commands share: functions that add them to a command's parser."""

import argparse

from ...engine.spec.attempt import RESTARTS
from ...engine.spec.config import KEEP_PROGRAMS, MARGIN, STOP_SECONDS, AnomalyConfig
from ...engine.spec.preset_files import preset_files
from .destinations import to
from .parser import MORE
from .values import byte_count, minutes, model, path, preset, presets, steps_to_trace, switch


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_run_argument(parser: argparse.ArgumentParser, is_optional: bool = False) -> None:
    help_, nargs = "name of the run; see `shardtui ls`", "?" if is_optional else None
    parser.add_argument("run", nargs=nargs, metavar="RUN", help=help_)


def add_program_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command",
        default="shardtui",
        dest="program",
        metavar="C",
        help="the command on HOST, such as venv/bin/shardtui; default shardtui",
    )


def add_preset_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset", type=preset, metavar="P", help="name or .toml file; default dp; see `shardtui presets`"
    )


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
    add = parser.add_argument
    add("--processes", type=int, metavar="N", help="split the simulated devices among N processes, as on N hosts")
    add(
        "--to",
        action="append",
        type=to,
        dest="metrics_to",
        metavar="KIND:PLACE",
        help="write the curves while the run trains, as `shardtui metrics` does: csv:FILE, tensorboard:DIR or "
        "wandb:PROJECT; repeatable; `none` ends what a resumed run, or a run file, did",
    )
    add_supervision_options(parser)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("documents", MORE).add_argument
    add(
        "--text-field",
        default="text",
        metavar="F",
        help="field of .json, .jsonl or ArrayRecord, or column of .csv or .parquet; default text",
    )
    add("--end-of-text", metavar="TOKEN", help="the token that ends a document; default: the tokenizer's, if known")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("data").add_argument
    add("--data", type=path, metavar="PATH", help="text, documents or tokens; default: the sources of Python's library")
    add(
        "--tokenizer",
        type=path,
        metavar="FILE",
        help="tokenize the data first with this tokenizer.json, once; default: bytes",
    )
    add_text_options(parser)
    add("--seed", type=int, metavar="N", help="seed of parameters, data order and dropout; default 0")


def _add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("held-out data").add_argument
    add("--eval-data", type=path, metavar="PATH", help="held-out data, whose loss is computed every so often")
    add("--eval-share", type=float, metavar="F", help="hold out this fraction of the data, at its end, such as 0.01")
    add("--eval-every", type=int, metavar="N", help="steps between evaluations of the held-out data; default 100")
    add(
        "--eval-batches", type=int, metavar="K", help="held-out batches in an evaluation, the same each time; default 8"
    )


def _add_anomaly_options(parser: argparse.ArgumentParser) -> None:
    add, config = parser.add_argument_group("spikes and non-finite values", MORE).add_argument, AnomalyConfig()
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
    add("--model", type=model, metavar="M", help=f"one of {known} (default nano), {own}")
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
        type=path,
        metavar="PATH",
        help="store checkpoints in PATH/RUN, gs://… included; default: the run directory",
    )
    add("--keep", type=int, metavar="K", help="newest checkpoints to keep, in addition to the best; default 3")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("profiling, memory and checks", MORE).add_argument
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
        "--margin",
        type=float,
        metavar="F",
        help=f"with --set remat=auto: leave this fraction of a device's memory free; default {MARGIN}",
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
        dest="stop_seconds",
        metavar="S",
        help=f"after a request to stop, exit within S seconds, saved or not; default {STOP_SECONDS:g}, 0 for no limit",
    )


def add_supervision_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("restarts", MORE).add_argument
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
        type=presets,
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
        type=switch,
        dest="switches",
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
    add("--data", type=path, help=argparse.SUPPRESS)
    add("--seed", type=int, help=argparse.SUPPRESS)
    add("--run", dest="run_name", help=argparse.SUPPRESS)
