"""Processes that a model or a data loader forks: they inherit every descriptor, and may outlive their parent."""

import os
from collections.abc import Callable, Iterable


def detach_in_children(descriptors: Callable[[], Iterable[int]]) -> None:
    """Redirects a child's copies of these descriptors to /dev/null, in every child that is forked from now on. They are
    not closed, since the objects that own these numbers exist in the child as well."""
    os.register_at_fork(after_in_child=lambda: redirect_to_null(descriptors()))


def redirect_to_null(descriptors: Iterable[int]) -> None:
    """Redirects these descriptors to /dev/null; a negative one is closed already."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
