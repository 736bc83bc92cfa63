"""A few random presets and programs against independent checks; `tests/long/presets.py` tries many more."""

import pytest

from ..preset_checks import Checks, wrong_of_program
from ..random_presets import case

PLACED = range(24)
COMPILED = (11, 12, 13, 15, 131, 113, 653)
"""A mixture of experts, explicit axis types with overrides, a pipeline with remat, odd sizes, a pipeline whose blocks
with remat save their input split, and interleaved stages: like that, and with a replicated state."""


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) if seed % 3 else seed for seed in PLACED])
def test_placed_presets(seed: int) -> None:
    assert Checks(case(seed)).placed().wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", COMPILED)
def test_compiled_and_trained_presets(seed: int) -> None:
    checks = Checks(case(seed))
    if program := checks.described():
        checks.trained(program)
    assert checks.checked.wrong == []


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int) -> None:
    assert wrong_of_program(seed) == []
