"""Outcomes of an attempt that several processes make together: done, refused, damaged or failed."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from ..base.advice import problems_in
from ..base.output import note_traceback
from ..base.user_error import UserError

Kind = Literal["done", "refused", "damaged", "failed"]


class Problem(Exception):
    """An error with `problems`, one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Damaged(Problem):
    """A checkpoint is not what was written: bytes were read and differ, or a file is certainly absent."""


class Failure(Problem):
    """A valid request did not succeed this time: out of memory, a full disk."""


class Unreadable(Failure):
    """A checkpoint cannot be read, now or by this version, which proves nothing about it: nothing may be changed."""


class NotMet(UserError):
    """The processes of a run did not connect: an attempt without those that are missing may begin."""


class Unfit(UserError):
    """No preset fits the devices that are left."""

    def __init__(self, processes: int | None, *problems: str) -> None:
        """`processes`: with fewer of them, this many, one does; None if none does with any."""
        super().__init__(*problems)
        self.processes = processes


class WrongDevices(Problem):
    """Devices do not hold what their replicas hold: the run has to end, and to go on without them if it can."""

    def __init__(self, problem: str, devices: dict[int, list[int]]) -> None:
        """`devices`: their ids by process index; empty if it is not certain which are wrong."""
        super().__init__(problem)
        self.devices = devices


class Stranded(Problem):
    """This process failed while the others wait for it in a collective forever: the run has to end."""


ERRORS: dict[Kind, type[UserError | Damaged | Failure]] = {"failed": Failure, "damaged": Damaged, "refused": UserError}
"""What each outcome raises, the worst first: a process that ran out of memory does not know whether its file is
damaged."""
UNSUCCESSFUL = tuple(ERRORS.values())
"""Exceptions of an attempt after which training continues."""


class Outcome(Struct, frozen=True):
    kind: Kind = "done"
    problems: list[str] = []


def outcome_of(error: BaseException | None) -> Outcome:
    """Returns the outcome that an exception means; None means done."""
    for kind, raised in ERRORS.items():
        if isinstance(error, raised):
            return Outcome(kind, problems_in(error))
    return Outcome() if error is None else Outcome("failed", problems_in(error))


def unsuccessful(error: BaseException) -> Exception:
    """Returns `error` as one of `UNSUCCESSFUL`. Logs the traceback of an unexpected one, which becomes Failure."""
    if isinstance(error, UNSUCCESSFUL):
        return error
    note_traceback(error)
    return Failure(*problems_in(error))


def worst(outcomes: Iterable[Outcome]) -> Kind:
    """Returns the worst outcome of all processes, which each then has."""
    kinds = {outcome.kind for outcome in outcomes}
    for kind in ERRORS:
        if kind in kinds:
            return kind
    return "done"
