"""The built-in decoder against `transformers`, whose answers `tests/long/oracle.py` writes."""

import json
from pathlib import Path

import pytest
from shardtui.engine.spec.hf_config import ARCHITECTURES, MODEL_TYPES
from shardtui.engine.spec.hf_defaults import DEFAULTS
from shardtui.engine.spec.hf_fields import FIXED, IGNORED

from .defaults import ANSWER
from .ours import Model
from .tiny import CONFIGS

MOST = 1e-4
"""The largest absolute difference in float32."""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("Gemma3ForCausalLM", "Qwen3MoeForCausalLM")]


def test_every_architecture_is_compared() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES)


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


def test_defaults_are_those_of_the_config_classes_of_transformers() -> None:
    """All fields of all classes: `python tests/oracle/defaults.py` writes them."""
    found = json.loads(ANSWER.read_text())["defaults"]
    assert set(found) == set(DEFAULTS) == set(ARCHITECTURES)
    same_elsewhere = {"hidden_act", "hidden_activation", "num_experts", "num_local_experts"}
    for architecture, theirs in found.items():
        ours = DEFAULTS[architecture]
        assert theirs["model_type"] == MODEL_TYPES[architecture]
        assert {name: ours[name] for name in theirs if name in ours} == {n: v for n, v in theirs.items() if n in ours}
        assert not [name for name in ours if name not in theirs and ours[name] and name not in same_elsewhere]
        others = {name: value for name, value in theirs.items() if name not in ours and name not in IGNORED}
        tables = {"rope_parameters", "layer_types", "original_max_position_embeddings"}
        assert {name: value for name, value in others.items() if name not in tables} == {
            name: None if theirs[name] is None else FIXED[name] for name in others if name not in tables
        }
