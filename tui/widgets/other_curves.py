"""The losses of other runs as curves for the loss chart, each with a letter and a colour of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import RunDirectory
from ..state.losses import Losses
from ..state.run_summary import recorded
from .loss_plot import Curve

STYLES = {"A": "$warning", "B": "$success", "C": "$error", "D": "$secondary", "E": "$foreground", "F": "$accent"}
"""Colour by letter."""
MAX_CURVES = len(STYLES)


async def curves_of(runs: Sequence[RunDirectory], drawn: Sequence[Curve]) -> AsyncIterator[list[Curve]]:
    """Yields the curves of at most `MAX_CURVES` runs, again after each that was read: those not `drawn` yet are."""
    names = [run.name for run in runs]
    curves = [curve for curve in drawn if curve.name in names]
    yield curves
    for run in runs:
        if run.name not in [curve.name for curve in curves]:
            losses = await _losses_of(run)
            letter = next(letter for letter in STYLES if letter not in [curve.letter for curve in curves])
            curves = sorted([*curves, Curve(run.name, losses, letter, STYLES[letter])], key=lambda curve: curve.letter)
            yield curves


async def _losses_of(run: RunDirectory) -> Losses:
    """Returns the losses of a run's steps; none if they cannot be read: the legend then has no loss."""
    try:
        return (await asyncio.to_thread(recorded, run)).losses
    except UserError:
        return Losses()
