"""What was recorded for tests of the views is what engines answer now."""

import json
from typing import Any

import pytest
from shardtui.engine.hlo.lint import lint
from shardtui.engine.wire.events import Inspection

from .recordings import INSPECTIONS, PRESETS, anew, decoded, described


@pytest.mark.core
def test_engines_answer_what_was_recorded() -> None:
    lines = anew()
    assert list(map(fields, lines.splitlines())) == list(map(fields, INSPECTIONS.read_bytes().splitlines()))
    assert list(map(lasting, decoded(lines))) == list(map(lasting, described(*PRESETS)))


def fields(line: bytes) -> list[list[str]]:
    found = json.loads(line)
    return [list(part) for part in (found, found["compiled"], found["inspected"])]


def lasting(inspection: Inspection) -> list[Any]:
    """What every version of jax answers."""
    compiled, inspected = inspection.compiled, inspection.inspected
    sent = [(each.kind, each.axes, each.count, each.bytes_each, each.dtype) for each in compiled.collectives or ()]
    return [
        inspection.devices,
        inspection.flops_per_step,
        compiled.preset,
        compiled.mesh,
        compiled.arrays,
        inspected.arrays,
        sorted(sent),
        [(each.code, each.arrays) for each in lint(compiled, inspected, inspection.flops_per_step)],
    ]
