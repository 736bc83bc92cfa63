"""The options of each command, as argparse has them."""

import argparse
import math

from ...engine.spec.config import KEEP_PROGRAMS, MOST_PROFILED, STOP_SECONDS, ScheduledSwitch
from ...engine.spec.preset import AXIS_NAME
from ...engine.spec.preset_files import preset_files
from .run_config import absolute

MOST_DEVICES = 10**6


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
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


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--resume", metavar="RUN", help="go on with a run from its newest good checkpoint, on any preset and devices")
    add("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step instead")
    add("--other-data", action="store_true", help="with --resume: also where the text is not the one from before")
    add("--checkpoint-every", type=int, metavar="N", help="save every N steps; a run is saved at its end in any case")
    add("--checkpoint-minutes", type=float, metavar="M", help="save every M minutes; default 10, 0 for never")
    add("--checkpoint-dir", metavar="PATH", help="keep them in PATH/RUN, also gs://…; default: with the run")
    add("--keep", type=int, metavar="K", help="checkpoints to keep besides the best; default 3")


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


def _add_inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--diff", metavar="PRESET", help="what differs between the preset and this other one")
    parser.add_argument("--svg", metavar="FILE", help="write the answer as a picture instead")
    parser.add_argument("--hlo", metavar="FILE", help="the collectives of a compiled module's text, from any program")
    parser.add_argument("--mesh", type=_mesh, metavar="AXIS=SIZE,…", help="with --hlo: the mesh it was compiled for")


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
    return ScheduledSwitch(int(step), absolute(preset))


def _mesh(text: str) -> dict[str, int]:
    try:
        sizes = {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        sizes = {}
    named = all(AXIS_NAME.fullmatch(axis) for axis in sizes)
    if not sizes or not named or min(sizes.values()) < 1 or math.prod(sizes.values()) > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2")
    return sizes
