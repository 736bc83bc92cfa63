"""Processes that a model or a data loader forks: they inherit every descriptor, and may outlive the one they are of."""

import os
from collections.abc import Callable, Iterable


def leave_to_parent(descriptors: Callable[[], Iterable[int]]) -> None:
    """A child that is forked from now on has no part in these: its own copies lead nowhere.

    They are not closed, since the objects that own the numbers are there in the child as well.
    """
    os.register_at_fork(after_in_child=lambda: lead_nowhere(descriptors()))


def lead_nowhere(descriptors: Iterable[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
