"""The fields of a `config.json` of Hugging Face's `transformers`: those that were read, and the problems of all.

A field that is neither read nor listed here is refused, because it might change what is computed.
"""

import json
from typing import Any

import msgspec

from .model_config import Rope

Table = dict[str, Any]
IGNORED = frozenset(
    {
        *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache"),
        *("initializer_range", "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp"),
        *("cache_implementation", "router_aux_loss_coef", "auto_map", "_attn_implementation", "attn_implementation"),
        *("max_window_layers", "output_attentions", "output_hidden_states", "return_dict", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        *("task_specific_params", "n_ctx", "gradient_checkpointing", "id2label", "label2id", "is_decoder"),
        *("tokenizer_class", "problem_type", "chunk_size_feed_forward", "_sliding_window_pattern"),
    }
)
"""Fields without effect in training: names, types, tokens, caches, other uses of the model."""
FIXED: Table = {
    "use_bidirectional_attention": False,
    "output_router_logits": False,
    "router_jitter_noise": 0.0,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "reorder_and_upcast_attn": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
ROPE_NAMES = {
    "factor": "factor",
    "original_context": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "attention_factor": "attention_factor",
}


class Fields:
    """The fields of a file. Notes which were read, and every problem."""

    def __init__(self, table: Table, has_nested_rope: bool) -> None:
        self._table, self._read = table, set[str]()
        self.has_nested_rope = has_nested_rope
        """Whether the rotary positions may differ by type of layer."""
        self.problems: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._table

    def __call__(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        found = self._table.get(name)
        return default if found is None else found

    def number(self, name: str, default: float | None = None) -> Any:
        """Returns a number; without a default it must be given."""
        found = self(name, default)
        if found is None:
            self.problems.append(f"{name}: missing: it is needed for the size of the model")
        elif isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 2**40:
            self.problems.append(f"{name} {json.dumps(found)}: must be a number")
        else:
            return found
        return 1

    def size(self, name: str, default: int | None = None) -> int:
        found = self.number(name, default)
        if found == int(found) >= 1:
            return int(found)
        self.problems.append(f"{name} {found}: must be a whole number above 0")
        return 1

    def table(self, name: str) -> Table:
        found = self(name, {})
        if isinstance(found, dict):
            return found  # pyright: ignore[reportUnknownVariableType]
        self.problems.append(f"{name} {json.dumps(found)}: must be an object")
        return {}

    def names(self, name: str) -> list[str]:
        found = self(name, [])
        if isinstance(found, list):
            return [str(each) for each in found]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        self.problems.append(f"{name} {json.dumps(found)}: must be a list")
        return []

    def one_of(self, name: str, default: str, *known: str) -> None:
        """Notes a problem if the field is none of the `known` values."""
        found = self(name, default)
        if found not in known:
            self.problems.append(f"{name} {json.dumps(found)}: not supported: it must be {' or '.join(known)}")

    def read(self) -> Table:
        return {name: value for name, value in self._table.items() if name in self._read}

    def unread(self) -> list[str]:
        rest = {name: value for name, value in self._table.items() if name not in self._read | IGNORED}
        wrong = [
            f"{name} {json.dumps(value)[:60]}: not supported: it must be {json.dumps(FIXED[name])}"
            for name, value in rest.items()
            if name in FIXED and value not in (FIXED[name], None)
        ]
        unknown = [name for name, value in rest.items() if name not in FIXED and value is not None]
        return wrong + [
            f"{name} {json.dumps(rest[name])[:60]}: unknown to shardtui, and it may change what is computed: remove it "
            "if it does not"
            for name in unknown
        ]


def rope_table(fields: Fields, kind: str = "") -> Table:
    """Returns the table of rotary positions: `rope_parameters`, or `rope_scaling` of earlier files."""
    table = fields.table("rope_parameters") or ({} if kind else fields.table("rope_scaling"))
    if kind:
        return table.get(kind) or {}
    if nested := {"full_attention", "sliding_attention"} & table.keys():
        if not fields.has_nested_rope:
            fields.problems.append(f"rope_parameters: {', '.join(sorted(nested))}: not supported for this architecture")
        return {}
    return table


def rope(fields: Fields, table: Table, theta: float, context: int) -> Rope:
    """Returns rotary positions; notes a problem for scalings and fields that are unknown."""
    kind = table.get("rope_type") or table.get("type") or "default"
    known = {"default": "none", "linear": "linear", "dynamic": "dynamic", "llama3": "llama3", "yarn": "yarn"}
    values: Table = {"theta": table.get("rope_theta") or theta}
    read = {*ROPE_NAMES.values(), "rope_type", "type", "rope_theta"}
    values |= {ours: table[theirs] for ours, theirs in ROPE_NAMES.items() if table.get(theirs) is not None}
    if kind not in known:
        fields.problems.append(f"rope type {kind}: not supported: choose from {', '.join(known)}")
    unknown = [name for name in table if name not in read and table[name] not in (None, FIXED.get(name))]
    fields.problems.extend(f"rope {name}: unknown to shardtui" for name in unknown)
    values["scaling"] = known.get(kind, "none")
    if values["scaling"] in ("llama3", "yarn"):
        values["original_context"] = table.get("original_max_position_embeddings") or context
    elif values["scaling"] == "dynamic":
        values["original_context"] = context
    elif values["scaling"] == "none":
        values = {"theta": values["theta"]}
    else:
        values.pop("original_context", None)
    try:
        return msgspec.convert(values, Rope)
    except msgspec.ValidationError as error:
        fields.problems.append(f"rope: {error}")
        return Rope()
