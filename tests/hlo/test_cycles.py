"""The cycles that the TPU compiler estimates, in texts of it."""

import re
from pathlib import Path

import pytest
from shardtui.engine.hlo.module import parse

from ..cycles import estimated_cycles

HLO = Path(__file__).parents[1] / "hlo"


@pytest.mark.parametrize(("name", "times"), [("psum-in-a-loop", 5), ("fori_loop-from-2-to-9", 7)])
def test_cycles_of_a_loop_count_as_often_as_it_runs(name: str, times: int) -> None:
    text = (HLO / f"tpu-{name}.hlo").read_text()
    (once,) = re.findall(r'"estimated_cycles":"(\d+)"', text)
    assert estimated_cycles(parse(text)) == times * int(once)


def test_cycles_of_a_step_are_those_of_its_instructions() -> None:
    text = (HLO / "tpu-fsdp.hlo").read_text()
    found = [int(cycles) for cycles in re.findall(r'"estimated_cycles":"(\d+)"', text)]
    assert (estimated_cycles(parse(text)) or 0) >= max(found) > 0


def test_a_text_without_estimates_has_none() -> None:
    assert estimated_cycles(parse((HLO / "tpu-psum.hlo").read_text())) is None
