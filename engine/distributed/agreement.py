"""Compares, before training, what must be the same on every host. Needs no jax."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from ..spec.config import Restart, RunConfig
from ..spec.preset import Preset
from ..wire.descriptions import CorpusInfo
from .cluster import Cluster

PER_HOST = {"data", "evaluation.data", "checkpoints.directory"}
"""Settings that may differ between hosts: paths."""


def facts(
    config: RunConfig, restart: Restart, versions: Mapping[str, str], presets: Mapping[str, Preset]
) -> dict[str, str]:
    """Returns the settings of this process as text, by the name that messages use."""
    found = {**versions, **_flat(msgspec.to_builtins(config))}
    found |= {"--preset": str(restart.preset), "--from-step": str(restart.step)}
    found |= {"--fallback": ",".join(restart.fallback)}
    digests = {name: hashlib.sha256(msgspec.json.encode(preset.layout)).hexdigest() for name, preset in presets.items()}
    return found | {f"the preset {name}": f"SHA-256 {digest[:12]}…" for name, digest in digests.items()}


def corpus_facts(corpus: CorpusInfo, held_out: CorpusInfo | None) -> dict[str, str]:
    found = {"the corpus": corpus} | ({"the held-out data": held_out} if held_out else {})
    return {name: f"{info.bytes:,} bytes, SHA-256 {info.sha256[:12]}…" for name, info in found.items()}


def differences(cluster: Cluster, own: Mapping[str, str]) -> list[str]:
    """Returns a line for each fact in which a process differs from process 0. `own` are the facts of this process: only
    their values are known here, as processes send each other fingerprints of names and values. A fact that a process
    does not have is no difference."""
    sent = {cluster.fingerprint(fact): cluster.fingerprint(value) for fact, value in own.items()}
    found = cluster.all_gather(sent, dict[str, str])
    return [
        f"{fact}: {_value(fact, cluster, other.process, own)} on process {other.process} ({other.name}), "
        f"{_value(fact, cluster, 0, own)} on process 0 ({cluster.hosts[0].name}): use the same on every host; each "
        "process reports its own value"
        for other, theirs in zip(cluster.hosts[1:], found[1:], strict=True)
        for key, fact in zip(sent, own, strict=True)
        if key in found[0] and theirs.get(key, found[0][key]) != found[0][key]
    ]


def _value(fact: str, cluster: Cluster, of: int, own: Mapping[str, str]) -> str:
    return own[fact] if cluster.process == of else "a different value"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return {key: value for key, value in flat.items() if key not in PER_HOST}
