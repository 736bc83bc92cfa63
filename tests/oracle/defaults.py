"""Writes the defaults of the config classes of `transformers`, of those fields that have an effect:
`python tests/oracle/defaults.py`. It needs no torch."""

import json
from dataclasses import fields
from typing import Any

from shardtui.engine.spec.hf_config import ARCHITECTURES
from shardtui.engine.spec.hf_fields import IGNORED
from shardtui.engine.spec.preset_files import PRESETS

UNUSED = IGNORED - {"model_type", "max_window_layers"}
OTHER_NAMES = {"Gemma3ForCausalLM": "Gemma3TextConfig", "GPT2LMHeadModel": "GPT2Config"}
"""Of the config class, where it is not the architecture's."""


def write() -> None:
    import transformers

    kinds = {name: OTHER_NAMES.get(name, name.replace("ForCausalLM", "Config")) for name in ARCHITECTURES}
    found = {name: _defaults(getattr(transformers, kind)) for name, kind in kinds.items()}
    text = json.dumps({"transformers": transformers.__version__, "defaults": found}, indent=1)
    (PRESETS / "transformers.json").write_text(f"{text}\n")


def _defaults(kind: type[Any]) -> dict[str, Any]:
    own = {name for each in kind.__mro__ if each.__module__ == kind.__module__ for name in each.__annotations__}
    found = {field.name: field.default for field in fields(kind) if field.name in own}
    found |= {"tie_word_embeddings": kind().tie_word_embeddings, "model_type": kind.model_type}
    rope = kind().to_dict().get("rope_parameters") or {}
    if "full_attention" in rope:
        found |= {
            "rope_theta": rope["full_attention"]["rope_theta"],
            "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
            "sliding_window_pattern": kind()._sliding_window_pattern,
        }
    elif rope:
        found["rope_theta"] = rope["rope_theta"]
    return {name: found[name] for name in sorted(found.keys() - UNUSED)}


if __name__ == "__main__":
    write()
