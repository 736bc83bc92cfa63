"""The board of a run: each preset as predicted, as compiled and as measured on its devices."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...engine.analysis.traffic import flows
from ...engine.base import figures
from ...engine.planning.ranking import Cost, Row, ranked, recommendation
from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import EngineReady, PresetCompiled
from .run_state import RunState


def rows_of(state: RunState, presets: Sequence[str]) -> list[Row]:
    """One for each of these presets; what was measured comes first, the fastest before others."""
    return in_order(
        [row_of(info, state) for info in state.ready.presets if info.name in presets] if state.ready else []
    )


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(ranked(rows), key=lambda row: (row.measured is None, bool(row.problems)))


def row_of(info: PresetInfo, state: RunState) -> Row:
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
        compiled=_cost(compiled, ready.memory_limit if ready else None) if compiled else None,
        measured=comparison.measured(name, tokens) if comparison and tokens else None,
    )


def listed(state: RunState) -> list[str]:
    """Presets that a view shows: all but those to learn from, unless the run is under one."""
    presets = state.ready.presets if state.ready else []
    return [info.name for info in presets if not is_pitfall(info.name) or info.name == state.preset]


def cells(row: Row) -> tuple[str, ...]:
    """Step time, the quartiles of it, tokens/s; memory in use, that of the arguments and that of all as predicted;
    bytes that a device sends in a step, as compiled and by formula."""
    measured, compiled, estimate = row.measured, row.compiled, row.estimate
    times = rate = used = ""
    if measured:
        times = span(measured.lower_quartile_seconds, measured.upper_quartile_seconds)
        rate = f"{float(f'{measured.tokens_per_second:.3g}'):,.0f}"
        used = "" if measured.bytes_in_use is None else figures.size(measured.bytes_in_use)
    return (
        figures.seconds(measured.step_seconds) if measured else "–",
        times,
        rate,
        used,
        predicted(row, "argument_bytes"),
        predicted(row, "peak_bytes"),
        sent(compiled),
        sent(estimate),
    )


def predicted(row: Row, name: Literal["argument_bytes", "peak_bytes"]) -> str:
    """`≈ 1.2 MB` by formula, where there is no program."""
    if row.compiled:
        return figures.size(getattr(row.compiled, name))
    return f"≈ {figures.size(getattr(row.estimate, name))}" if row.estimate else ""


def sent(cost: Cost | None) -> str:
    """By one device in a step."""
    return "" if cost is None or cost.bytes_sent is None else figures.size(cost.bytes_sent)


def span(low: float, high: float) -> str:
    """`205…230 ms`, the unit once where it is the same."""
    texts = figures.seconds(low), figures.seconds(high)
    (one, unit), (other, same) = (text.rsplit(" ", 1) for text in texts)
    return f"{one}…{other} {unit}" if unit == same else "…".join(texts)


def devices(ready: EngineReady | None) -> str:
    """`8 × TPU v5`"""
    return f"{len(ready.devices)} × {ready.devices[0].kind}" if ready else "these devices"


def verdict(rows: Sequence[Row], where: str) -> str:
    """A sentence: which preset to take on these devices, as far as was measured."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return f"no preset was measured on {where}: the table says why"
    said = recommendation(measured, where)
    best, *others = (row.measured for row in in_order(measured) if row.measured)
    if others and best.upper_quartile_seconds > others[0].lower_quartile_seconds:
        said += "; their times overlap: with more steps the next may come first"
    return said


def _cost(compiled: PresetCompiled, limit: int | None) -> Cost | None:
    memory = compiled.memory
    if memory is None:
        return None
    return Cost(
        argument_bytes=memory.arguments,
        peak_bytes=memory.peak,
        capacity_bytes=limit,
        collectives=None if compiled.collectives is None else flows(compiled.collectives),
    )


def with_capacity(row: Row, limit: int | None) -> Row:
    """An estimate is made without the devices."""
    if row.estimate is None:
        return row
    return msgspec.structs.replace(row, estimate=msgspec.structs.replace(row.estimate, capacity_bytes=limit))
