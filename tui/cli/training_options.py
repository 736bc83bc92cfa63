"""The options of runs: data, devices, model, checkpoints and the engine."""

import argparse

from ...engine.spec.attempt import RESTARTS
from ...engine.spec.config import KEEP_PROGRAMS, STOP_SECONDS
from ...engine.spec.preset_files import preset_files
from .option_types import byte_count, listed_presets, minutes, scheduled_switch, steps_to_trace


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of documents."""
    add = parser.add_argument
    add(
        "--text-field",
        default="text",
        metavar="F",
        help="field of .jsonl or ArrayRecord, or column of .parquet; default text",
    )
    add("--end-of-text", metavar="TOKEN", help="the token that ends a document; default: the tokenizer's, if known")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of training data."""
    add = parser.add_argument
    add("--data", metavar="PATH", help="text, documents or tokens; default: the sources of Python's library")
    add("--tokenizer", metavar="FILE", help="tokenize the data first with this tokenizer.json, once; default: bytes")
    add_text_options(parser)
    add("--seed", type=int, metavar="N", help="seed of parameters, data order and dropout; default 0")


def add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of held-out data."""
    add = parser.add_argument
    add("--eval-data", metavar="PATH", help="held-out data, whose loss is computed every so often")
    add("--eval-share", type=float, metavar="F", help="hold out this fraction of the data, at its end, such as 0.01")
    add("--eval-every", type=int, metavar="N", help="steps between evaluations of the held-out data; default 100")
    add(
        "--eval-batches", type=int, metavar="K", help="held-out batches in an evaluation, the same each time; default 8"
    )


def accept_training_options(command: str, parser: argparse.ArgumentParser) -> None:
    """Accepts options without effect here, so that a `train` command works with `inspect` in place of `train`."""
    add = parser.add_argument
    add("--data", help=argparse.SUPPRESS)
    add("--seed", type=int, help=argparse.SUPPRESS)
    add("--run", dest="run_name", help=argparse.SUPPRESS)
    if command == "presets":
        add("--preset", help=argparse.SUPPRESS)


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of devices."""
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="devices to use; of simulated ones, to create (default 8)")
    add("--device-memory", type=byte_count, metavar="BYTES", help="reject presets predicted to need more on a device")
    add("--platform", metavar="P", help="cpu, gpu or tpu; default: what jax finds")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the model."""
    add = parser.add_argument
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


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of checkpoints."""
    add = parser.add_argument
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


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the engine."""
    add = parser.add_argument
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


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a process on a host."""
    add = parser.add_argument
    add(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of process 0; detected on a TPU pod and under Slurm",
    )
    add("--num-processes", type=int, metavar="N", help="number of processes, one per host")
    add("--process-id", type=int, metavar="I", help="number of this process, from 0")
    add(
        "--secret-file",
        metavar="FILE",
        help="the run's secret, the same on every host; default: $SHARDTUI_SECRET, or created next to the checkpoints",
    )
    add("--insecure", action="store_true", help="use no secret; only on a network that nobody else can reach")


def add_supervision_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a supervised run."""
    add = parser.add_argument
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
        type=listed_presets,
        default=(),
        metavar="P,Q",
        help="with --supervise: presets to try in this order where the run's does not fit fewer devices; then any",
    )


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of how long to train and when to switch."""
    parser.add_argument(
        "--steps", type=int, metavar="N", help="stop after N steps in total, including those before --resume"
    )
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        type=scheduled_switch,
        metavar="STEP:PRESET",
        help="switch to PRESET after STEP steps; repeatable",
    )
