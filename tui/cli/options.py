"""The options of each command, for argparse."""

import argparse
from typing import get_args

from ...engine.spec.config import MOST_SAMPLED
from ...engine.spec.exported import Dtype
from ...engine.spec.search import Goal
from .explain_options import add_explain_options, add_why_options, mesh
from .option_types import minutes, price, sizes, steps_to_trace
from .training_options import (
    accept_training_options,
    add_checkpoint_options,
    add_data_options,
    add_device_options,
    add_engine_options,
    add_evaluation_options,
    add_host_options,
    add_model_options,
    add_schedule_options,
    add_supervision_options,
    add_text_options,
)

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
        add_data_options(parser)
    if command in TRAINING:
        add_evaluation_options(parser)
    if command in ("presets", "inspect", "lint", "why"):
        accept_training_options(command, parser)
    if command in (*TRAINING, "presets", "inspect", "lint", "why", "compare"):
        add_device_options(parser)
    if command in (*TRAINING, "presets", "inspect", "lint", "why", "compare", "plan"):
        add_model_options(parser)
    if command in TRAINING:
        add_checkpoint_options(parser)
        add_engine_options(parser)
        parser.add_argument("--sample-every", type=int, metavar="N", help="sample text after every N steps")
        parser.add_argument("--sample-prompt", metavar="TEXT", help="with --sample-every: the text to continue")
    if command in ("run", "train"):
        parser.add_argument(
            "--processes", type=int, metavar="N", help="split the simulated devices among N processes, as on N hosts"
        )
        add_supervision_options(parser)
    if command == "engine":
        add_host_options(parser)
        add_supervision_options(parser)
        parser.add_argument(
            "--wait-for-host",
            type=float,
            metavar="S",
            help="with --supervise: wait S seconds for lost hosts to return; default: go on at once with "
            "--min-processes, else wait for ever",
        )
    if command == "inspect":
        _add_inspect_options(parser)
    if command == "compare":
        _add_compare_options(parser)
    if command in ("train", "engine"):
        add_schedule_options(parser)
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
        type=steps_to_trace,
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
    add_text_options(parser)


def _add_sample_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="the text to continue; default: a line break")
    add("--tokens", type=int, default=64, metavar="N", help=f"bytes to sample, {MOST_SAMPLED:,} at most; default 64")
    add("--temperature", type=float, default=1.0, metavar="T", help="divides the logits; 0: the most probable byte")
    add("--seed", type=int, default=0, metavar="S", help="seed of the sample; default 0")


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
        type=sizes,
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
    add(
        "--topology",
        action="append",
        required=True,
        metavar="T",
        help="TPU chips, such as v5p:4x4x4, or hosts × GPUs: h100:4x8; repeatable, to compare",
    )
    add("--slices", type=int, metavar="N", help="so many of these slices, connected by DCN; default 1")
    add("--price", type=price, action="append", default=[], metavar="CHIP=USD", help="of a chip-hour; repeatable")
    add(
        "--preset",
        action="append",
        default=[],
        metavar="P",
        help="name or .toml file; repeatable; default: all except the pitfalls; see `shardtui presets`",
    )
    add(
        "--search",
        action="store_true",
        help="choose: estimate meshes, rules, batch, remat and micro-batches, and compile the best; settings that are "
        "given are kept",
    )
    add("--goal", choices=get_args(Goal), help="of --search; default tokens-per-second")
    add("--minutes", type=minutes, metavar="M", help="of --search: end with the best so far; default 10")
    add("--save", metavar="NAME|FILE", help="of --search: save the preset that it chose, also as one of yours by NAME")
    add("--estimate", action="store_true", help="use formulas only: immediate, compiles nothing")
    add("--memory", action="store_true", dest="shows_memory", help="also show what fills the memory at the peak")
    add("--fit", action="store_true", help="also compile what may make each --preset fit that is too large")
    add(
        "--profile",
        action="store_true",
        dest="accounts",
        help="also predict where the time of a step goes, by the compiler's schedule and its estimates",
    )
