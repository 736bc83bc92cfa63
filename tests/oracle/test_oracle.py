"""The built-in decoder against `transformers`, whose answers `tests/long/oracle.py` writes."""

from pathlib import Path

import pytest
from shardtui.engine.spec.hf_config import ARCHITECTURES

from .ours import Model
from .tiny import CONFIGS

MOST = 1e-4
"""The largest absolute difference in float32."""
SLOW = [pytest.param("Qwen3MoeForCausalLM", marks=pytest.mark.slow)]


def test_every_architecture_is_compared() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_and_loss_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).forward()
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM", *SLOW])
def test_gradients_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).gradients()
    assert len(found) > 20
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("architecture", [pytest.param("LlamaForCausalLM", marks=pytest.mark.core), *SLOW])
def test_ten_steps_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).losses()
    assert max(found.values()) < MOST, found
