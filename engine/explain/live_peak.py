"""Describes the memory of a device at the peak of a traced step."""

import math
import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from ..base.formatting import maxima
from ..hlo.peak_memory import MOST_BUFFERS, MOST_POINTS, Peak
from ..wire.descriptions import PeakBuffer, PeakMemory
from .graph import Place, bytes_of
from .live_memory import Buffer, LiveMemory

DTYPES = {"i1": "pred", "i": "s", "ui": "u"}


def live_peak(live: LiveMemory, names: Sequence[str]) -> Peak:
    """Returns the peak of a step with its largest buffers. `names`: of the program's arguments, in order."""
    program, at = live.program, live.peak
    constant: dict[str, Any] = {"kind": "argument", "op_name": "", "source": "", "begin": 0.0, "end": 1.0}
    given = [
        _described(live, value, value, program.bytes(value, program.layout(value)), name=name, **constant)
        for value, name in zip(program.main.arguments, names, strict=True)
    ]
    held = [sum(each.bytes for each in given) + size for size in live.held]
    largest = sorted(filter(lambda buffer: buffer.bytes, live.at_peak), key=lambda buffer: -buffer.bytes)
    running = next((buffer for buffer in live.buffers if buffer.begin == at), None)
    place = live.places.of(running.op.location) if running else Place("", "")
    temporaries = (_temporary(live, buffer) for buffer in largest[:MOST_BUFFERS])
    buffers = sorted([*given, *temporaries], key=lambda each: -each.bytes)
    curve = maxima(held[: live.now + 1], MOST_POINTS)
    memory = PeakMemory(bytes=held[at], at=live.share(at), op_name=place.op_name, source=place.source, curve=curve)
    return Peak(memory, buffers[:MOST_BUFFERS])


def _temporary(live: LiveMemory, buffer: Buffer) -> PeakBuffer:
    results = list(buffer.op.results)
    typed = results[0] if results and buffer.value not in results else buffer.value
    place = live.places.of(buffer.op.location)
    about = {
        "op_name": place.op_name,
        "source": place.source,
        "begin": live.share(buffer.begin),
        "end": live.share(buffer.end),
    }
    kind = "temporary" if results else "output"
    return _described(live, buffer.value, typed, buffer.bytes, name="", kind=kind, **about)


def _described(live: LiveMemory, value: Any, typed: Any, size: int, **about: Any) -> PeakBuffer:
    shape = live.program.part(value, live.program.layout(value))
    dtype = str(ir.RankedTensorType(typed.type).element_type)
    hlo = re.sub("^(i1$|ui|i)", lambda found: DTYPES[found[0]], dtype)
    padding = size - math.prod(shape) * bytes_of(dtype)
    return PeakBuffer(bytes=size, padding=padding, layout=f"{hlo}[{','.join(map(str, shape))}]", **about)
