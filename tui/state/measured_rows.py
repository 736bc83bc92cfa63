"""The board of a run: each preset as estimated, as compiled and as measured on its devices."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from ...engine.base import formatting
from ...engine.hlo.traffic import flows
from ...engine.planning.goal import ranked
from ...engine.planning.ranking import Measured, Row, StepCost
from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import EngineReady, PresetCompiled
from ..terminal.axis_style import axes_text
from ..terminal.plain_table import Column, figure
from .recommendation import recommendation
from .run_state import RunState


def rows_of(state: RunState, presets: Sequence[str]) -> list[Row]:
    """Returns a row for each of these presets: the measured ones first, the fastest at the top."""
    return in_order(
        [row_of(info, state) for info in state.ready.presets if info.name in presets] if state.ready else []
    )


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(ranked(rows), key=lambda row: (row.measured is None, bool(row.problems)))


def row_of(info: PresetInfo, state: RunState) -> Row:
    """Returns what is known of a preset: its estimate, its compiled program and its measured figures."""
    name, ready, comparison = info.name, state.ready, state.comparison
    estimated, compiled = state.estimates.get(name), state.compiled.get(name)
    problems = comparison.problems.get(name) if comparison else None
    tokens = ready.tokens_per_step if ready else None
    return Row(
        preset=name,
        mesh=info.mesh,
        pipeline=info.pipeline,
        problems=problems or info.problems,
        laid_out=info.fits,
        estimate=estimated.estimate if estimated else None,
        no_estimate=estimated.no_estimate if estimated else "",
        compiled=_cost(compiled, state) if compiled else None,
        measured=comparison.measured(name, tokens) if comparison and tokens else None,
    )


def listed_presets(state: RunState) -> list[str]:
    """Returns the presets that a view shows: all but the pitfalls, unless one is active."""
    presets = state.ready.presets if state.ready else []
    return [info.name for info in presets if not is_pitfall(info.name) or info.name == state.preset]


def columns(
    counted: str,
    is_wide: bool = True,
    mark: Callable[[Row], str] = lambda row: "",
    status: Callable[[Row], str] = lambda row: "",
) -> list[Column[Row]]:
    """Returns the columns of the board. `counted`: tokens or examples. `mark`: what stands before a preset's name.
    `status`: what stands in the place of its step time, if anything."""
    return [
        Column("preset", lambda row: mark(row) + row.preset),
        Column(
            "mesh",
            lambda row: axes_text(
                formatting.axes(row.mesh) if is_wide else "×".join(map(str, row.mesh.values())), row.mesh
            ),
        ),
        figure(
            "step time",
            lambda row: status(row) or _measured(row, lambda it: formatting.seconds(it.step_seconds)) or "–",
        ),
        figure(
            "middle 50 %",
            lambda row: _measured(row, lambda it: span(it.lower_quartile_seconds, it.upper_quartile_seconds)),
            2,
        ),
        figure(f"{counted}/s", lambda row: _measured(row, lambda it: formatting.three_digits(it.tokens_per_second)), 3),
        figure("in use", lambda row: _measured(row, lambda it: size(it.bytes_in_use))),
        figure("state + batch", lambda row: predicted(row, "argument_bytes"), 1),
        figure("peak", lambda row: predicted(row, "peak_bytes")),
        figure("sent", lambda row: predicted(row, "bytes_sent")),
    ]


def _measured(row: Row, text: Callable[[Measured], str]) -> str:
    return text(row.measured) if row.measured else ""


def predicted(row: Row, name: Literal["argument_bytes", "peak_bytes", "bytes_sent"]) -> str:
    """Returns bytes per device as compiled; as traced, `≈ 1.2 MB`, if that is not known; empty if neither is."""
    if row.compiled and (found := size(getattr(row.compiled, name))):
        return found
    return f"≈ {found}" if row.estimate and (found := size(getattr(row.estimate, name))) else ""


def size(count: int | None) -> str:
    return "" if count is None else formatting.size(count)


def span(low: float, high: float) -> str:
    """Returns a range of seconds, such as `205…230 ms`: the unit appears once if both ends share it."""
    texts = formatting.seconds(low), formatting.seconds(high)
    (one, unit), (other, same) = (text.rsplit(" ", 1) for text in texts)
    return f"{one}…{other} {unit}" if unit == same else "…".join(texts)


def devices(ready: EngineReady | None) -> str:
    return f"{len(ready.devices)} × {ready.devices[0].kind}" if ready else "these devices"


def verdict(rows: Sequence[Row], where: str) -> str:
    """Returns a sentence that recommends a preset on these devices, as far as they were measured."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return f"no preset was measured on {where}: see the table for the reasons"
    sentence = recommendation(measured, where)
    best, *others = (row.measured for row in in_order(measured) if row.measured)
    if others and best.upper_quartile_seconds > others[0].lower_quartile_seconds:
        sentence += "; the difference to the next is not significant: measure more steps"
    return sentence


def _cost(compiled: PresetCompiled, state: RunState) -> StepCost | None:
    memory = compiled.memory
    if memory is None:
        return None
    return StepCost(
        basis="compiled",
        argument_bytes=memory.arguments,
        peak_bytes=memory.peak,
        capacity_bytes=state.ready.memory_limit if state.ready else None,
        collectives=None if compiled.collectives is None else flows(compiled.collectives),
    )


def with_capacity(row: Row, limit: int | None) -> Row:
    if row.estimate is None:
        return row
    return msgspec.structs.replace(row, estimate=msgspec.structs.replace(row.estimate, capacity_bytes=limit))
