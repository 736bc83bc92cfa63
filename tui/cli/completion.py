"""Tab completion in bash, zsh and fish, by argcomplete: of commands, options, presets, models, runs and settings."""

import argparse
from typing import Any, cast

from ...engine.spec.config import ModelConfig, TrainingConfig
from ...engine.spec.preset_files import preset_files
from ...engine.spec.topology import chips
from ...engine.wire.run_directory import all_runs
from ..terminal import FINE
from .parser import actions

SHELLS = ("bash", "zsh", "fish")


def completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=SHELLS,
        help='bash, zsh: add `eval "$(shardtui completion bash)"` to its start-up file; fish: pipe it to `source`',
    )


def completion_command(options: argparse.Namespace) -> int:
    import argcomplete.shell_integration

    print(argcomplete.shell_integration.shellcode(["shardtui"], shell=options.shell), end="")
    return FINE


def complete(parser: argparse.ArgumentParser) -> None:
    import argcomplete

    for action in actions(parser):
        if values := VALUES.get(action.dest):
            cast(Any, action).completer = values
    argcomplete.autocomplete(parser, always_complete_options=False)


def _presets(**_: object) -> list[str]:
    return list(preset_files("parallelism"))


def _models(**_: object) -> list[str]:
    return list(preset_files("models"))


def _runs(**_: object) -> list[str]:
    return [directory.name for directory in all_runs()]


def _slices(**_: object) -> list[str]:
    return [f"{generation}:" for generation in chips()]


def _settings(**_: object) -> list[str]:
    return [f"{field}=" for struct in (ModelConfig, TrainingConfig) for field in struct.__struct_fields__]


VALUES = {
    "preset": _presets,
    "presets": _presets,
    "diff": _presets,
    "model": _models,
    "run": _runs,
    "resume": _runs,
    "topology": _slices,
    "set": _settings,
}
"""Completers by the `dest` of an option or a positional argument."""
