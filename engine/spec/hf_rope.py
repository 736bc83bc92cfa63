"""Rotary positions in a `config.json` of Hugging Face's `transformers`."""

import msgspec

from .hf_fields import FIXED, Fields, Table
from .model_config import Rope


def rope_table(fields: Fields, kind: str = "") -> Table:
    """Returns the table of rotary positions: of today's files, or of those before `rope_parameters`."""
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
    names = {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
        "attention_factor": "attention_factor",
    }
    read = {*names, "rope_type", "type", "rope_theta", "original_max_position_embeddings"}
    values |= {ours: table[theirs] for theirs, ours in names.items() if table.get(theirs) is not None}
    if kind not in known:
        fields.problems.append(f"rope type {kind}: not supported: choose from {', '.join(known)}")
    unknown = [name for name in table if name not in read and table[name] not in (None, FIXED.get(name))]
    fields.problems.extend(f"rope {name}: unknown to shardtui" for name in unknown)
    values["scaling"] = known.get(kind, "none")
    if values["scaling"] in ("llama3", "yarn"):
        values["original_context"] = table.get("original_max_position_embeddings") or context
    if values["scaling"] == "dynamic":
        values["original_context"] = context
    if values["scaling"] == "none":
        values = {"theta": values["theta"]}
    try:
        return msgspec.convert(values, Rope)
    except msgspec.ValidationError as error:
        fields.problems.append(f"rope: {error}")
        return Rope()
