"""The largest values of a long course, for a picture of it."""

from collections.abc import Sequence
from itertools import pairwise


def maxima(course: Sequence[int], most: int) -> list[int]:
    """Returns the largest value of each part of a course, of which there are at most `most`, equally long."""
    count = min(len(course), most)
    bounds = [len(course) * part // count for part in range(count + 1)] if count else []
    return [max(course[begin:end]) for begin, end in pairwise(bounds)]
