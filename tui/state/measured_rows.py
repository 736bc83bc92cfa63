"""The board of a run: each preset as estimated, as compiled and as measured on its devices."""

from collections.abc import Callable, Sequence

from ...engine.base import formatting
from ...engine.hlo.step_cost import StepCost
from ...engine.hlo.traffic import flows
from ...engine.planning.goal import ranked
from ...engine.planning.ranking import Row
from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import EngineReady, PresetCompiled
from ..terminal.axis_style import axes_text
from ..terminal.plain_table import Column, figure
from .recommendation import recommendation
from .run_state import RunState


def rows_of(state: RunState) -> list[Row]:
    """Returns a row for each preset that a view shows: the measured ones first, the fastest at the top."""
    return in_order([row_of(info, state) for info in listed_presets(state)])


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
        counted=state.counted,
        pipeline=info.pipeline,
        problems=problems or info.problems,
        laid_out=info.fits,
        estimate=estimated.estimate if estimated else None,
        no_estimate=estimated.no_estimate if estimated else "",
        compiled=_cost(compiled, state) if compiled else None,
        measured=comparison.measured(name, tokens) if comparison and tokens else None,
    )


def listed_presets(state: RunState) -> list[PresetInfo]:
    """Returns the presets that a view shows: all but the pitfalls, unless one is active."""
    presets = state.ready.presets if state.ready else []
    return [info for info in presets if not is_pitfall(info.name) or info.name == state.preset]


def step_seconds(row: Row) -> float | None:
    return row.measured.step_seconds if row.measured else None


def columns(
    counted: str,
    is_wide: bool = True,
    mark: Callable[[Row], str] = lambda row: "",
    status: Callable[[Row], str] = lambda row: "",
    seconds: Callable[[Row], float | None] = step_seconds,
) -> list[Column[Row]]:
    """Returns the columns of the board. `counted`: tokens or examples. `mark`: what stands before a preset's name.
    `status`: what stands in the place of its step time, if anything. `seconds`: that time."""

    def time(row: Row) -> str:
        found = seconds(row)
        return status(row) or ("–" if found is None else formatting.seconds(found))

    return [
        Column("preset", lambda row: mark(row) + row.preset),
        Column(
            "mesh",
            lambda row: axes_text(
                formatting.axes(row.mesh) if is_wide else "×".join(map(str, row.mesh.values())), row.mesh
            ),
        ),
        Column("step time", time, is_figure=True, value=seconds),
        Column(
            "middle 50 %",
            lambda row: span(it.lower_quartile_seconds, it.upper_quartile_seconds) if (it := row.measured) else "",
            is_figure=True,
            leaves=2,
            value=lambda row: row.measured.lower_quartile_seconds if row.measured else None,
        ),
        figure(
            f"{counted}/s",
            lambda row: row.measured.tokens_per_second if row.measured else None,
            formatting.three_digits,
            3,
        ),
        figure("in use", lambda row: row.measured.bytes_in_use if row.measured else None, formatting.size, 4),
        predicted("state + batch", lambda cost: cost.argument_bytes, 1),
        predicted("peak", lambda cost: cost.peak_bytes),
        predicted("sent", lambda cost: cost.bytes_sent),
    ]


def predicted(name: str, size: Callable[[StepCost], int | None], leaves: int = 0) -> Column[Row]:
    """Returns a column of bytes per device as compiled; as traced, `≈ 1.2 MB`, where that is not known."""

    def value(row: Row) -> int | None:
        costs = (row.compiled, row.estimate)
        return next((found for cost in costs if cost and (found := size(cost)) is not None), None)

    def cell(row: Row) -> str:
        if (found := value(row)) is None:
            return ""
        is_compiled = row.compiled and size(row.compiled) is not None
        return formatting.size(found) if is_compiled else f"≈ {formatting.size(found)}"

    return Column(name, cell, is_figure=True, leaves=leaves, value=value)


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
