"""The built-in decoder against `transformers`, whose answers `tests/long/oracle.py` writes."""

import json
from pathlib import Path

import pytest
from shardtui.engine.spec.hf_config import ARCHITECTURES, defaults, read_config

from .ours import Model
from .tiny import CONFIGS

MOST = 1e-4
"""The largest absolute difference in float32."""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("Gemma3ForCausalLM", "Qwen3MoeForCausalLM")]


def test_every_architecture_is_compared() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES) == set(defaults())


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_and_loss_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).forward()
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", *SLOW])
def test_gradients_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).gradients()
    assert len(found) > 20
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("architecture", [pytest.param("LlamaForCausalLM", marks=pytest.mark.core), *SLOW])
def test_ten_steps_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    found = Model(architecture, tmp_path).losses()
    assert max(found.values()) < MOST, found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_field_of_a_config_class_is_known_and_read_as_its_default(architecture: str, tmp_path: Path) -> None:
    found = []
    given = {"architectures": [architecture]} | ({"norm_topk_prob": True} if "Moe" in architecture else {})
    for table in (given, defaults()[architecture] | given):
        (tmp_path / "config.json").write_text(json.dumps(table))
        found.append(read_config(tmp_path, dropout=0.0))
    assert found[0] == found[1]
