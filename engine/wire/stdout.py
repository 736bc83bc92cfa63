"""Output of one-shot engine commands: JSON on stdout, problems on stderr."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout

from msgspec import Struct

from ..base.invalid import Invalid
from .framing import encode_json


def answered(answer: Callable[..., int | None], *arguments: object) -> int:
    """Runs `answer` and returns its exit code; if it raises Invalid, prints the problems on stderr and returns 2."""
    try:
        with redirect_stdout(sys.stderr):  # a user's model may print
            return answer(*arguments) or 0
    except Invalid as error:
        print(*(f"shardtui: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return 2


def print_answer(answer: Struct) -> None:
    """Prints `answer` as one line of JSON on the real stdout, at once."""
    assert sys.__stdout__ is not None
    sys.__stdout__.buffer.write(encode_json(answer) + b"\n")
    sys.__stdout__.buffer.flush()
