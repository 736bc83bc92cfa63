"""Suggests the known name that a mistyped one resembles."""

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean fsdp? ` for the closest known name; empty if none is close."""
    from difflib import get_close_matches  # needed only after a mistake

    found = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"did you mean {found[0]}? " if found else ""
