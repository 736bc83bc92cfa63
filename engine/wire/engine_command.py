"""The command line of an engine process, and what it prints while its answer waits."""

import sys

from msgspec import Struct

from ..base.encoding import exact_json

ENGINE = [sys.executable, "-P", "-m", "shardtui.engine"]


class Turn(Struct, frozen=True, kw_only=True):
    """Printed before the answer of a compilation that waits for others: when it begins to wait, and when it goes on."""

    is_waiting: bool


def engine_command(question: str, *about: str | Struct | None) -> list[str]:
    """Returns the command that asks the engine `question`, a subcommand, with structs as JSON arguments.

    Because of `-P`, modules in the user's directory, such as a `random.py`, do not replace Python's. Raises
    UserError if a path in a struct is not text.
    """
    texts = [part if isinstance(part, str) else exact_json(part).decode() for part in about]
    return [*ENGINE, question, *texts]
