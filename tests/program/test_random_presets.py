"""A handful of random presets and programs against independent checks; the long form is `tests/long/presets.py`."""

import pytest

from ..preset_checks import Checks, wrong_of_program
from ..random_presets import case

PLACED = range(24)
COMPILED = ()
"""With explicit axis types and overrides, a pipeline, a mixture of experts, odd sizes."""


@pytest.mark.parametrize("seed", PLACED)
def test_what_is_placed(seed: int) -> None:
    assert Checks(case(seed)).placed().wrong == []


@pytest.mark.parametrize("seed", COMPILED)
def test_what_is_compiled_and_trained(seed: int) -> None:
    checks = Checks(case(seed))
    if program := checks.described():
        checks.trained(program)
    assert checks.checked.wrong == []


@pytest.mark.parametrize("seed", range(3))
def test_programs(seed: int) -> None:
    assert wrong_of_program(seed) == []
