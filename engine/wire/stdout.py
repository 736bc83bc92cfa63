"""Output of one-shot engine commands: JSON on stdout, problems on stderr."""

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout

from msgspec import Struct

from ..base.encoding import encode_json
from ..base.output import say
from ..base.user_error import UserError
from .ending import Ending, write_ending


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
