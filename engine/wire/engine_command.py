"""The command line of an engine process that answers one question, and what it prints: JSON on stdout, problems on
stderr."""

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout

from msgspec import Struct

from ..base.encoding import encode_json, exact_json
from ..base.output import say
from ..base.user_error import UserError
from .ending import Ending, write_ending

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


def answered(answer: Callable[..., Struct | Iterable[Struct] | int | None], *arguments: object) -> int:
    """Prints what `answer` returns, unless that is the exit code, and returns the exit code.

    If it raises UserError, prints the problems on stderr and returns 2; after Ctrl-C it returns 130.
    """
    try:
        with redirect_stdout(sys.stderr):  # a user's model may print
            found = answer(*arguments)
            if isinstance(found, int):
                return found
            for each in [found] if isinstance(found, Struct) else found or ():
                print_answer(each)
            return 0
    except UserError as error:
        write_ending(Ending(kind="refused", problems=list(error.problems)))
        say(*error.problems)
        return 2
    except KeyboardInterrupt:  # the command that asked was interrupted, too, and says so
        return 130


def print_answer(answer: Struct) -> None:
    """Prints `answer` as one line of JSON on the real stdout, at once."""
    assert sys.__stdout__ is not None
    sys.__stdout__.buffer.write(encode_json(answer) + b"\n")
    sys.__stdout__.buffer.flush()
