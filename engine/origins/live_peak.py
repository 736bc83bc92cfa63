"""Describes what fills the memory of a device at the peak of a step that was not compiled."""

import math
import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from ..analysis.peak_memory import MOST_BUFFERS, MOST_POINTS, Peak
from ..base.maxima import maxima
from ..wire.descriptions import PeakBuffer, PeakMemory
from .live_memory import Buffer, LiveMemory
from .locations import Place
from .partitioned import bytes_of

DTYPES = {"i1": "pred", "i": "s", "ui": "u"}
"""How StableHLO and HLO name a type, or begin to."""


def live_peak(live: LiveMemory, arguments: Sequence[str]) -> Peak:
    """Returns the peak of a step with its largest buffers. `arguments`: names of the program's arguments, in order."""
    return _Reader(live).peak(arguments)


class _Reader:
    def __init__(self, live: LiveMemory) -> None:
        self._live = live

    def peak(self, names: Sequence[str]) -> Peak:
        live, at = self._live, self._live.peak
        given = [self._argument(*pair) for pair in zip(live.program.main.arguments, names, strict=True)]
        held = [sum(each.bytes for each in given) + size for size in live.held]
        largest = sorted(filter(lambda buffer: buffer.bytes, live.at_peak), key=lambda buffer: -buffer.bytes)
        running = next((buffer for buffer in live.buffers if buffer.begin == at), None)
        place = self._live.places.of(running.op.location) if running else Place("", "")
        buffers = sorted([*given, *map(self._temporary, largest[:MOST_BUFFERS])], key=lambda each: -each.bytes)
        memory = PeakMemory(
            bytes=held[at],
            at=self._share(at),
            op_name=place.op_name,
            source=place.source,
            curve=maxima(held[: live.now + 1], MOST_POINTS),
        )
        return Peak(memory, buffers[:MOST_BUFFERS])

    def _argument(self, value: Any, name: str) -> PeakBuffer:
        size = self._live.program.bytes(value, self._live.program.layout(value))
        return self._described(
            value, value, size, name=name, kind="argument", op_name="", source="", begin=0.0, end=1.0
        )

    def _temporary(self, buffer: Buffer) -> PeakBuffer:
        results = list(buffer.op.results)
        typed = buffer.value if buffer.value in results else results[0]
        op_name, source = self._live.places.of(buffer.op.location)
        begin, end = self._share(buffer.begin), self._share(buffer.end)
        about = {"kind": "temporary", "op_name": op_name, "source": source, "begin": begin, "end": end}
        return self._described(buffer.value, typed, buffer.bytes, name="", **about)

    def _described(self, value: Any, typed: Any, size: int, **about: Any) -> PeakBuffer:
        """Describes memory of the shape of one value and the type of another."""
        shape = self._live.program.part(value, self._live.program.layout(value))
        dtype = str(ir.RankedTensorType(typed.type).element_type)
        hlo = re.sub("^(i1$|ui|i)", lambda found: DTYPES[found[0]], dtype)
        padding = size - math.prod(shape) * bytes_of(dtype)
        return PeakBuffer(bytes=size, padding=padding, layout=f"{hlo}[{','.join(map(str, shape))}]", **about)

    def _share(self, time: int) -> float:
        return round(min(time / max(1, self._live.now), 1.0), 4)
