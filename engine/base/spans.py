"""Spans of a time that integers count, such as picoseconds."""

from collections.abc import Iterable

Span = tuple[int, int]
"""Begin and end."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Returns spans that cover the same time and do not overlap, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
