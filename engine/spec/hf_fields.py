"""The fields of a `config.json` of Hugging Face's `transformers`: those that were read, and the problems of all.

A field that is neither read nor listed here is refused, because it might change what is computed.
"""

import json
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from .model_config import Rope

T = TypeVar("T")
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
SYNONYMS = {
    "num_experts": "num_local_experts",
    "num_local_experts": "num_experts",
    "hidden_act": "hidden_activation",
    "hidden_activation": "hidden_act",
}
"""Pairs of names of one field, of which a config class has one or both."""
ROPE_NAMES = {
    "original_context": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}
"""Fields of rotary positions that files have by another name."""


WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list[str]: "a list of texts",
    dict[str, Any]: "an object",
}
"""The types that fields may have."""


class RopeTable(Struct, rename=ROPE_NAMES, omit_defaults=True):
    """`rope_parameters`, or `rope_scaling`, of one type of layer."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    original_context: int | None = None
    low_frequency_factor: float | None = None
    high_frequency_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    attention_factor: float | None = None


class Fields:
    """The fields of a file, each decoded as the type that its reader asks for. Notes which were read, and all
    problems."""

    def __init__(self, table: Table, defaults: Table) -> None:
        """`defaults`: a field's value if it is missing. A field without one is off."""
        self._table, self._defaults, self._read = table, defaults, set[str]()
        self.problems: list[str] = []

    def skip(self, name: str) -> None:
        self._read.add(name)

    def has(self, name: str) -> bool:
        return name in self._table

    def __call__(self, name: str, kind: type[T], default: T) -> T:
        """Returns a field; the default if it is missing, null, or of another type, which is a problem."""
        self._read.add(name)
        found = self._table.get(name)
        if found is None:
            return default
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError:
            self._refuse(name, f"must be {WORDS[kind]}")
            return default

    def _refuse(self, name: str, why: str) -> None:
        self.problems.append(f"{name} {_shown(self._table.get(name))}: {why}")

    def default(self, name: str) -> Any:
        return self._defaults.get(name, self._defaults.get(SYNONYMS.get(name, "")))

    def flag(self, name: str) -> bool:
        return self(name, bool, self.default(name) or False)

    def number(self, name: str, derived: float | None = None) -> float:
        """Returns a number. `derived`: what follows from other fields, if this one or its default is null."""
        default = self.default(name)
        if derived is not None and (default is None or name in self._table):
            default = derived
        found = self(name, float, default or 0.0)
        if 0 <= found < 2**40:
            return found
        self._refuse(name, f"must be {WORDS[float]}")
        return 1.0

    def size(self, name: str, derived: int | None = None, most: int = 2**31) -> int:
        found = self.number(name, derived)
        if 1 <= found <= most and found == int(found):
            return int(found)
        self.problems.append(f"{name} {found:,g}: must be a whole number from 1 to {most:,}")
        return 1

    def table(self, name: str) -> Table:
        return self(name, dict[str, Any], {})

    def one_of(self, name: str, *known: str) -> None:
        """Notes a problem if the field is none of the `known` values."""
        if self(name, str, self.default(name)) not in known:
            self._refuse(name, f"not supported: it must be {' or '.join(known)}")

    def read(self) -> Table:
        return {name: value for name, value in self._table.items() if name in self._read}

    def unread(self) -> list[str]:
        rest = {name: value for name, value in self._table.items() if name not in self._read | IGNORED}
        wrong = [
            f"{name} {_shown(value)}: not supported: it must be {json.dumps(FIXED[name])}"
            for name, value in rest.items()
            if name in FIXED and value not in (FIXED[name], None)
        ]
        unknown = [name for name, value in rest.items() if name not in FIXED and value is not None]
        return wrong + [
            f"{name} {_shown(rest[name])}: unknown to shardtui, and it may change what is computed: remove it if it "
            "does not"
            for name in unknown
        ]


def _shown(value: object) -> str:
    return json.dumps(value)[:60]


def rope_table(fields: Fields, kind: str = "") -> Table:
    """Returns the table of rotary positions: `rope_parameters`, or `rope_scaling` of earlier files."""
    table = fields.table("rope_parameters") or ({} if kind else fields.table("rope_scaling"))
    if kind:
        inner = Fields(table, {})
        found = inner.table(kind)
        fields.problems += [f"rope_parameters: {problem}" for problem in inner.problems]
        return found
    if nested := {"full_attention", "sliding_attention"} & table.keys():
        if fields.default("rope_local_base_freq") is None:  # there is one kind of layer
            fields.problems.append(f"rope_parameters: {', '.join(sorted(nested))}: not supported for this architecture")
        return {}
    return table


def rope(fields: Fields, table: Table, theta: float, context: int) -> Rope:
    """Returns rotary positions; notes a problem for scalings and fields that are unknown."""
    try:
        given = msgspec.convert(table, RopeTable)
    except msgspec.ValidationError as error:
        fields.problems.append(f"rope: {error}")
        return Rope()
    kind = given.rope_type or given.type or "default"
    known = {"default": "none", "linear": "linear", "dynamic": "dynamic", "llama3": "llama3", "yarn": "yarn"}
    if kind not in known:
        fields.problems.append(f"rope type {kind}: not supported: choose from {', '.join(known)}")
    unknown = (name for name in table if name not in RopeTable.__struct_encode_fields__)
    fields.problems.extend(
        f"rope {name}: unknown to shardtui" for name in unknown if table[name] not in (None, FIXED.get(name))
    )
    scaling = known.get(kind, "none")
    values: Table = {"theta": given.rope_theta or theta, "scaling": scaling}
    if scaling == "none":
        return msgspec.convert(values, Rope)
    values |= {name: value for name, value in asdict(given).items() if name in Rope.__struct_fields__}
    values["original_context"] = {"linear": 0, "dynamic": context}.get(scaling, given.original_context or context)
    values = {name: value for name, value in values.items() if value is not None}
    return msgspec.convert(values, Rope)
