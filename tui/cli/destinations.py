"""Where the curves of a run are written: the option `--to`, and what is wrong with a destination before it is used."""

import argparse
from collections.abc import Sequence
from typing import get_args

from ...engine.base.user_error import UserError, noting
from ...engine.spec.config import Destination, DestinationKind
from ...engine.wire.run_directory import RunDirectory
from .values import path


def to(text: str) -> Destination | None:
    """Reads a value of `--to`; None for `none`. Raises ArgumentTypeError."""
    kind, _, place = text.partition(":")
    if text == "none":
        return None
    known = next((each for each in get_args(DestinationKind) if each == kind), None)
    if not known or not place:
        raise argparse.ArgumentTypeError(f"{text!r} is not csv:FILE, tensorboard:DIR or wandb:PROJECT")
    return destination(known, place)


def destination(kind: DestinationKind, place: str) -> Destination:
    """Returns where curves go, with an absolute path, so that a run can resume from another directory. Raises UserError
    if the place is not on this machine."""
    if kind == "wandb":
        return Destination(kind=kind, place=place)
    if "://" in place:
        raise UserError(
            f"{kind}:{place}: curves are written to a path on this machine: give one, and copy it from there"
        )
    return Destination(kind=kind, place=path(place))


def chosen(given: list[Destination | None] | None) -> tuple[Destination, ...] | None:
    """Returns the destinations that `--to` names after the last `none`; None without the option."""
    if given is None:
        return None
    last = max((at for at, each in enumerate(given, 1) if each is None), default=0)
    return tuple(filter(None, given[last:]))


def problems_of_destinations(directory: RunDirectory, destinations: Sequence[Destination]) -> list[str]:
    """Returns why the curves of a run, which need not exist, cannot be written there, as far as it is known before."""
    kinds = [each.kind for each in destinations]
    repeated = [each for number, each in enumerate(destinations) if each.kind in kinds[:number]]
    problems = [f"--to {each.words}: another one of this kind is given, too: keep one" for each in repeated]
    for each in destinations:
        from ..metrics.follower import require_writable  # runs without destinations do not wait for it

        with noting(problems):
            require_writable(each, directory)
    return problems
