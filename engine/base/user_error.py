"""The error for an invalid request of the user, and the suggestion for a mistyped name."""

from collections.abc import Iterable


class UserError(Exception):
    """A request of the user is invalid: an option, a preset, a file."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean fsdp? ` for the closest known name; empty if none is close."""
    from difflib import get_close_matches  # needed only after a mistake

    found = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"did you mean {found[0]}? " if found else ""
