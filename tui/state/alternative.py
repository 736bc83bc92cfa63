"""Another preset that is known to take or to send less: what to try, with its figures."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from ...engine.base import formatting
from ...engine.hlo.step_cost import StepCost
from .measured_rows import listed_presets, row_of
from .run_state import RunState

LESS = 0.75
"""A preset is worth trying if it sends at most this fraction of the bytes."""
FASTER = 0.95
"""The same of the time that its steps took in this run."""


class Alternative(Struct, frozen=True):
    preset: str
    reason: str
    """Its figure and the running preset's."""


def alternative(state: RunState, preset: str) -> Alternative | None:
    """Returns a preset that was faster in this run than `preset`, or one that sends less; None if none is known.

    Compares bytes of compiled programs, else estimates, and no pipelines: their stages send little, but wait.
    """
    listed = [info.name for info in listed_presets(state)]
    known = {name: seconds for name in listed if (seconds := state.seconds_under(name))}
    own = state.seconds_under(preset)
    slower = {name for name, seconds in known.items() if own and seconds > own}
    return _faster(known, known.get(preset)) or _sends_less(state, preset, {*listed, preset} - slower)


def _faster(known: Mapping[str, float], own: float | None) -> Alternative | None:
    best = min(known, key=lambda name: known[name], default=None)
    if own is None or best is None or known[best] > FASTER * own:
        return None
    took = f"took {formatting.seconds(known[best])} a step in this run, and this one {formatting.seconds(own)}"
    return Alternative(best, took)


def _sends_less(state: RunState, preset: str, names: Collection[str]) -> Alternative | None:
    presets = state.ready.presets if state.ready else []
    rows = {info.name: row_of(info, state) for info in presets if info.name in names and not info.pipeline}
    if (own := rows.pop(preset, None)) is None:
        return None
    compiled = {name: row.compiled for name, row in rows.items() if not row.problems}
    estimated = {name: row.estimate for name, row in rows.items() if not row.problems}
    return _least(own.compiled, compiled, "") or _least(own.estimate, estimated, ", traced")


def _least(own: StepCost | None, others: Mapping[str, StepCost | None], how: str) -> Alternative | None:
    fitting = {name: cost for name, cost in others.items() if cost and cost.fits}
    sent = {name: cost.bytes_sent for name, cost in fitting.items() if cost.bytes_sent is not None}
    best = min(sent, key=lambda name: sent[name], default=None)
    if own is None or not own.bytes_sent or best is None or sent[best] > LESS * own.bytes_sent:
        return None
    amounts = formatting.size(sent[best]), formatting.size(own.bytes_sent)
    return Alternative(best, f"sends {amounts[0]} per device and step{how}, and this one {amounts[1]}")
