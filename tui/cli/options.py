"""The options of each command, for argparse."""

import argparse
import math
from typing import get_args

from ...engine.spec.config import KEEP_PROGRAMS, MOST_PROFILED, MOST_SAMPLED, STOP_SECONDS, ScheduledSwitch
from ...engine.spec.exported import Dtype
from ...engine.spec.preset_files import preset_files
from .explain_options import add_explain_options, add_why_options, mesh
from .run_config import absolute

TRAINING = ("run", "train", "engine")
"""Commands that start a run."""


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
    """Adds the options that apply to this command, in the order of its help. Long because that order stands here."""
    if command == "completion":
        from .completion import SHELLS

        parser.add_argument(
            "shell",
            choices=SHELLS,
            help='bash, zsh: add `eval "$(shardtui completion bash)"` to its start-up file; fish: pipe it to `source`',
        )
        return
    if command == "attach":
        parser.add_argument("run", nargs="?", metavar="RUN", help="name of the run; see `shardtui ls`")
    if command == "replay":
        _add_replay_options(parser)
    if command in ("stop", "verify", "sample", "export"):
        parser.add_argument("run", metavar="RUN", help="name of the run; see `shardtui ls`")
    if command == "export":
        _add_export_options(parser)
    if command == "data":
        _add_prepare_options(parser)
    if command == "profile":
        _add_profile_options(parser)
    if command == "sample":
        _add_sample_options(parser)
    if command == "why":
        add_why_options(parser)
    if command == "presets":
        _add_exchange_options(parser)
    if command in (*TRAINING, "inspect", "lint", "why"):
        parser.add_argument("--preset", metavar="P", help="name or .toml file; default dp; see `shardtui presets`")
    if command in TRAINING:
        parser.add_argument(
            "--run", metavar="NAME", dest="run_name", help="name of the run; default MODEL-1, MODEL-2, …"
        )
    if command == "plan":
        _add_plan_options(parser)
    if command == "explain":
        add_explain_options(parser)
    if command in (*TRAINING, "compare"):
        _add_data_options(parser)
    if command in TRAINING:
        _add_evaluation_options(parser)
    if command in ("presets", "inspect", "lint", "why"):
        _accept_training_options(command, parser)
    if command in (*TRAINING, "presets", "inspect", "lint", "why", "compare"):
        _add_device_options(parser)
    if command in (*TRAINING, "presets", "inspect", "lint", "why", "compare", "plan"):
        _add_model_options(parser)
    if command in TRAINING:
        _add_checkpoint_options(parser)
        _add_engine_options(parser)
        parser.add_argument("--sample-every", type=int, metavar="N", help="sample text after every N steps")
        parser.add_argument("--sample-prompt", metavar="TEXT", help="with --sample-every: the text to continue")
    if command in ("run", "train"):
        parser.add_argument(
            "--processes", type=int, metavar="N", help="split the simulated devices among N processes, as on N hosts"
        )
    if command == "engine":
        _add_host_options(parser)
    if command == "inspect":
        _add_inspect_options(parser)
    if command == "compare":
        _add_compare_options(parser)
    if command in ("train", "engine"):
        _add_schedule_options(parser)
    if command not in ("run", "tour", "attach", "replay", "stop", "engine"):
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _add_replay_options(parser: argparse.ArgumentParser) -> None:
    from .replay import speed

    parser.add_argument("run", metavar="RUN", help="name of a run, its directory, or an events.jsonl")
    parser.add_argument(
        "--speed",
        type=speed,
        default=1.0,
        metavar="N",
        help="how many times as fast as recorded; default 1; 0 plays everything at once. Keys: space pauses, [ and ] "
        "halve and double the speed",
    )


def _add_profile_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "subject",
        metavar="RUN|TRACE",
        help="name of a run, or an .xplane.pb, or a directory with some: the newest; with --topology, HLO text",
    )
    add(
        "--steps",
        type=_steps_to_trace,
        dest="profiled",
        default=5,
        metavar="N",
        help="steps to trace of a run that trains; default 5; of a run that has ended, its last profile is shown",
    )
    add("--diff", metavar="OTHER", help="compare with another run or trace")
    add("--hlo", metavar="FILE", help="with TRACE: HLO text of its program; default: the text that the trace contains")
    add("--mesh", type=mesh, metavar="AXIS=SIZE,…", help="with TRACE or --topology: the program's mesh, to name axes")
    add(
        "--topology",
        metavar="T",
        help="the subject is the HLO text of a program compiled for this TPU slice, which never ran: predict where its "
        "time goes, by the compiler's estimates",
    )


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directory", metavar="DIR", help="the directory to write, a new one")
    add("--from-step", type=int, metavar="N", help="export the checkpoint of this step; default: the newest intact one")
    add(
        "--dtype",
        choices=get_args(Dtype),
        help="default: that of the weights that the run began with, else float32, in which parameters are trained",
    )


def _add_prepare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["prepare"], help="tokenize documents; a preparation that was killed goes on")
    add("source", metavar="SRC", help="a file or a directory of text, .jsonl or .parquet files")
    add("out", metavar="OUT", help="the directory to write, which --data takes")
    add("--tokenizer", metavar="FILE", help="a tokenizer.json; default: bytes")
    _add_text_options(parser)


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--text-field", default="text", metavar="F", help="field of .jsonl, or column of .parquet; default text")
    add("--end-of-text", metavar="TOKEN", help="the token that ends a document; default: the tokenizer's, if known")


def _add_sample_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="the text to continue; default: a line break")
    add("--tokens", type=int, default=64, metavar="N", help=f"bytes to sample, {MOST_SAMPLED:,} at most; default 64")
    add("--temperature", type=float, default=1.0, metavar="T", help="divides the logits; 0: the most probable byte")
    add("--seed", type=int, default=0, metavar="S", help="seed of the sample; default 0")


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="PATH", help="text, or tokens; default: the sources of Python's library")
    add("--tokenizer", metavar="FILE", help="tokenize the data first with this tokenizer.json, once; default: bytes")
    _add_text_options(parser)
    add("--seed", type=int, metavar="N", help="seed of parameters, data order and dropout; default 0")


def _add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--eval-data", metavar="PATH", help="held-out data, whose loss is computed every so often")
    add("--eval-share", type=float, metavar="F", help="hold out this fraction of the data, at its end, such as 0.01")
    add("--eval-every", type=int, metavar="N", help="steps between evaluations of the held-out data; default 100")
    add(
        "--eval-batches", type=int, metavar="K", help="held-out batches in an evaluation, the same each time; default 8"
    )


def _accept_training_options(command: str, parser: argparse.ArgumentParser) -> None:
    """Accepts options without effect here, so that a `train` command works with `inspect` in place of `train`."""
    add = parser.add_argument
    add("--data", help=argparse.SUPPRESS)
    add("--seed", type=int, help=argparse.SUPPRESS)
    add("--run", dest="run_name", help=argparse.SUPPRESS)
    if command == "presets":
        add("--preset", help=argparse.SUPPRESS)


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="devices to use; of simulated ones, to create (default 8)")
    add("--device-memory", type=_bytes, metavar="BYTES", help="reject presets predicted to need more on a device")
    add("--platform", metavar="P", help="cpu, gpu or tpu; default: what jax finds")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
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


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
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


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--profile",
        type=_steps_to_trace,
        metavar="STEPS",
        help="trace this many steps, after the first few, and show where their time went; for xprof, the trace is "
        "stored in the run directory",
    )
    add(
        "--profile-every",
        type=_minutes,
        metavar="MINUTES",
        help="measure every so often how long the parts of a step take, in 1 %% of the time at most; Time shows it",
    )
    add(
        "--low-memory",
        action="store_true",
        default=None,
        help="save the state before a switch, then free each array once it is transferred",
    )
    add(
        "--keep-programs",
        type=_bytes,
        metavar="BYTES",
        help=f"host memory for compiled programs, least recently used dropped first; default {KEEP_PROGRAMS:,}",
    )
    add(
        "--stop-timeout",
        type=float,
        metavar="S",
        help=f"after a request to stop, exit within S seconds, saved or not; default {STOP_SECONDS:g}, 0 for no limit",
    )


def _add_host_options(parser: argparse.ArgumentParser) -> None:
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


def _add_schedule_options(parser: argparse.ArgumentParser) -> None:
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


def _add_inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--diff", metavar="PRESET", help="show what differs from this other preset")
    parser.add_argument("--svg", metavar="FILE", help="write the answer as a picture")
    parser.add_argument("--hlo", metavar="FILE", help="list the collectives of any compiled program, from its HLO text")
    parser.add_argument("--mesh", type=mesh, metavar="AXIS=SIZE,…", help="with --hlo: the mesh of that program")


def _add_exchange_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", nargs="?", choices=("import", "export"), help="omitted: list the presets")
    add(
        "subject",
        nargs="?",
        metavar="FILE.yml|PRESET",
        help="import: a configuration file of MaxText's, whose mesh and logical_axis_rules become a preset of yours; "
        "export: a preset, whose rules are printed in MaxText's form",
    )
    add("--name", metavar="NAME", help="with import: name of the preset; default: that of the file")
    add(
        "--mesh",
        type=_sizes,
        dest="sizes",
        metavar="AXIS=SIZE,…",
        help="with import: sizes of mesh axes in place of the file's; -1 for the remaining devices",
    )


def _add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "presets",
        nargs="*",
        metavar="PRESET",
        help="names or .toml files; default: all that fit except the pitfalls; see `shardtui presets`",
    )
    parser.add_argument(
        "--steps",
        type=int,
        dest="measured",
        default=20,
        metavar="N",
        help="steps to measure under each preset, after the warm-up; default 20",
    )


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topology", required=True, metavar="T", help="TPU slice: generation and chips, such as v5p:4x4x4")
    add(
        "--preset",
        action="append",
        default=[],
        metavar="P",
        help="name or .toml file; repeatable; default: all except the pitfalls; see `shardtui presets`",
    )
    add("--search", action="store_true", help="also try every mesh of the slice, and compile the best")
    add("--estimate", action="store_true", help="use formulas only: immediate, compiles nothing")
    add(
        "--profile",
        action="store_true",
        dest="accounts",
        help="also predict where the time of a step goes, by the compiler's schedule and its estimates",
    )


def _sizes(text: str) -> dict[str, int]:
    try:
        return {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as fsdp=-1,tensor=4") from error


def _bytes(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 16e9") from error


def _steps_to_trace(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROFILED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_PROFILED:,}")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, such as 10")
    return minutes


def _scheduled_switch(text: str) -> ScheduledSwitch:
    step, colon, preset = text.partition(":")
    if not colon or not step.isdecimal() or not preset:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:PRESET, such as 10:fsdp")
    return ScheduledSwitch(int(step), absolute(preset))
