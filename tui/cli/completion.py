"""Tab completion in bash, zsh and fish, by argcomplete: of commands, options, presets, models, runs and settings."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any, cast

from ...engine.base.output import show
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

    show(*argcomplete.shell_integration.shellcode(["shardtui"], shell=options.shell).splitlines())
    return FINE


def complete(parser: argparse.ArgumentParser) -> None:
    import argcomplete

    for action in actions(parser):
        if values := VALUES.get(action.dest):
            cast(Any, action).completer = _completer(values)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(values: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    def complete(**_: object) -> list[str]:
        return list(values())

    return complete


VALUES: dict[str, Callable[[], Iterable[str]]] = {
    **dict.fromkeys(("preset", "presets", "diff"), lambda: preset_files("parallelism")),
    "model": lambda: preset_files("models"),
    **dict.fromkeys(
        ("run", "runs", "other_run", "resume", "like"), lambda: [directory.name for directory in all_runs()]
    ),
    "topology": lambda: [f"{generation}:" for generation in chips()],
    "set": lambda: [f"{field}=" for struct in (ModelConfig, TrainingConfig) for field in struct.__struct_fields__],
}
"""Completions by the `dest` of an option or a positional argument."""
