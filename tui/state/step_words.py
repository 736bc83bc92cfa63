"""The compiled step in words: what fills the memory at its peak, its pipeline, its overlap."""

from collections.abc import Sequence

from ...engine.base import formatting
from ...engine.base.formatting import maxima
from ...engine.hlo.traffic import Flow, overlapped_share
from ...engine.spec.preset import PipelineInfo
from ...engine.wire.descriptions import PeakBuffer, PeakMemory


def held_by(buffer: PeakBuffer) -> str:
    """Returns what a buffer holds: an array, a copy of one, or the result of an operation."""
    if not buffer.name:
        return formatting.op(buffer.op_name)
    return buffer.name if buffer.kind == "argument" else f"copy of {buffer.name}"


def lifetime(buffer: PeakBuffer) -> str:
    return f"{formatting.percent(buffer.begin)} – {formatting.percent(buffer.end)}"


def moment(peak: PeakMemory) -> str:
    """Returns when the peak is: `78 % through the program, at blocks.py:51`."""
    where = formatting.short_source(peak.source) or formatting.op(peak.op_name)
    return f"{formatting.percent(peak.at)} through the program" + (f", at {where}" if where else "")


def curve_rows(peak: PeakMemory, width: int, height: int) -> list[str]:
    """Returns the memory over the step as lines of blocks, from 0 to the peak; none if it is not known.

    `width`: the most cells of a line; `height`: the lines.
    """
    course, step = maxima(peak.curve, width), peak.bytes / height
    bases = [step * row for row in reversed(range(height))] if course else []
    return ["".join(_cell(value - base, step) for value in course) for base in bases]


def _cell(size: float, whole: float) -> str:
    return formatting.bars([min(size, whole)], 0, whole) if size > 0 else " "


def coverage(peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int | None) -> str:
    """Returns how much of the peak the buffers are. `compiler`: its own figure of it; None if nothing is compiled."""
    shown = f"{formatting.size(sum(buffer.bytes for buffer in buffers))} of {formatting.size(peak.bytes)} live then"
    if compiler is None:
        return f"{shown}, traced: nothing was compiled"
    return f"{shown}, rebuilt from the order of the program; the compiler's own peak is {formatting.size(compiler)}"


def pipeline_words(info: PipelineInfo) -> str:
    """Returns a schedule such as `2 stages, 4 micro-batches, bubble 20 %`, with `2 repeats` if there are several."""
    repeats = f"{info.repeats} repeats, " if info.repeats > 1 else ""
    parts = formatting.counted(info.microbatches, "micro-batch")
    return f"{info.stages} stages, {repeats}{parts}, bubble {formatting.percent(info.bubble)}"


def overlap_words(flows: Sequence[Flow]) -> str:
    """Returns a share such as `36 % overlapped with computation`; empty if unknown or nothing is sent."""
    share = overlapped_share(flows)
    if share is None:
        return ""
    return f"{formatting.percent(share) if share else 'none'} overlapped with computation"
