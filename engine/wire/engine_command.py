"""The command line of an engine process, and what one in reserve is given in its place."""

import sys
from collections.abc import Sequence

from msgspec import Struct

from . import framing

ENGINE = [sys.executable, "-P", "-m", "shardtui.engine"]


class Assignment(Struct, frozen=True, kw_only=True):
    """What a process in reserve is to do."""

    question: list[str]
    """The arguments of an engine's command line."""
    log: str | None
    """File for stdout and stderr; None to inherit them."""


def engine_command(question: str, *about: str | Struct | None) -> list[str]:
    """Returns the command that asks the engine `question`, a subcommand, with structs as JSON arguments.

    Because of `-P`, modules in the user's directory, such as a `random.py`, do not replace Python's.
    """
    texts = [part if isinstance(part, str) else framing.encode_json(part).decode() for part in about]
    return [*ENGINE, question, *texts]


def question_of(command: Sequence[str]) -> list[str]:
    """Returns the arguments that follow the engine's name in a command."""
    return list(command[len(ENGINE) :])
