"""The error for an invalid request of the user, with all problems at once, and the suggestion for a mistyped name."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager


class UserError(Exception):
    """A request of the user is invalid: an option, a preset, a file."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def refuse(problems: Iterable[str]) -> None:
    """Raises UserError with these problems, if there are any."""
    if found := tuple(problems):
        raise UserError(*found)


@contextmanager
def noting(problems: list[str]) -> Generator[None]:
    """Adds the problems of a UserError in this context to the list, in place of raising it."""
    try:
        yield
    except UserError as error:
        problems += error.problems


@contextmanager
def together(problems: list[str]) -> Generator[None]:
    """Raises UserError with all problems in the list at the end of this context, and those of a UserError in it."""
    try:
        yield
    except UserError as error:
        raise UserError(*problems, *error.problems) from error
    refuse(problems)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean fsdp? ` for the closest known name, or the one with these initials; empty if none is."""
    from difflib import get_close_matches  # needed only after a mistake

    names = list(known)
    initials = [each for each in names if "".join(word[:1] for word in each.split("_")) == name]
    found = initials or get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean {' or '.join(found)}? " if found else ""
