"""Formulas against the programs that the compiler made of the same presets."""

from itertools import combinations

import jax
import pytest
from shardtui.engine.config import PRESETS
from shardtui.engine.estimate import Step
from shardtui.engine.preset import read_preset
from shardtui.engine.program import Program
from shardtui.engine.task import Task
from shardtui.engine.traffic import Flow, flows


def sent(moved: list[Flow]) -> int:
    return sum(flow.bytes_sent for flow in moved)


def by_formula(task: Task, name: str) -> int:
    preset = read_preset(PRESETS / "parallelism" / f"{name}.toml")
    return sent(Step(task, preset, jax.device_count()).flows)


def test_presets_send_as_much_as_formulas_say_and_in_their_order(task: Task, programs: dict[str, Program]) -> None:
    """Without the pitfalls: what makes them some, such as work done twice, the formulas do not follow."""
    names = [name for name in programs if not name.startswith("pitfall")]
    formula = {name: by_formula(task, name) for name in names}
    compiled = {name: sent(flows(programs[name].description.collectives or [])) for name in names}
    assert formula == pytest.approx(compiled, rel=0.002)
    for one, other in combinations(names, 2):
        if formula[one] != formula[other]:
            assert (formula[one] < formula[other]) == (compiled[one] < compiled[other]), f"{one} and {other}"
