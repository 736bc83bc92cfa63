"""How an attempt ends that several processes make together: done, refused, failed, or with damage found."""

import traceback
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from ..base.advice import problems_in
from ..base.invalid import Invalid

Kind = Literal["done", "refused", "damaged", "failed"]


class Problem(Exception):
    """`problems`: one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Damaged(Problem):
    """A checkpoint is not what was written."""


class Failure(Problem):
    """What was asked for is possible, but did not succeed this time: no memory, a full disk."""


class Stranded(Problem):
    """This process failed where the others wait for it in a collective for ever: the run has to end."""


UNSUCCESSFUL = (Invalid, Damaged, Failure)
"""What an attempt may raise and training goes on."""


class Outcome(Struct, frozen=True):
    """Of one process."""

    kind: Kind = "done"
    problems: list[str] = []


def outcome_of(error: Exception | None) -> Outcome:
    match error:
        case None:
            return Outcome()
        case Invalid():
            return Outcome("refused", list(error.problems))
        case Damaged():
            return Outcome("damaged", list(error.problems))
        case _:
            return Outcome("failed", problems_in(error))


def unsuccessful(error: Exception) -> Exception:
    """`error` as one of the three. What was not foreseen goes to the log with its traceback."""
    if isinstance(error, UNSUCCESSFUL):
        return error
    traceback.print_exception(error)
    return Failure(*problems_in(error))


def worst(outcomes: Iterable[Outcome]) -> Kind:
    """Of all processes, which makes it that of each: a file that one could not read for want of memory is not known to
    be damaged."""
    kinds = {outcome.kind for outcome in outcomes}
    order: tuple[Kind, ...] = ("failed", "damaged", "refused", "done")
    return next(kind for kind in order if kind in kinds)


def error_of(kind: Kind, problems: Iterable[str]) -> Exception:
    """For any kind but `done`."""
    return {"refused": Invalid, "damaged": Damaged, "failed": Failure}[kind](*problems)
