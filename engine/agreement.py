"""What has to be the same on every host, compared before training. Needs no jax."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .config import RunConfig
from .preset import Preset
from .protocol import CorpusInfo, HostInfo

OF_THE_HOST = {"run", "data", "steps", "checkpoints"}
"""What each host may have its own of, or process 0 alone goes by."""


def facts(
    config: RunConfig | None, corpus: CorpusInfo, versions: Mapping[str, str], presets: Mapping[str, Preset]
) -> dict[str, str]:
    """By the words in which a difference is told. `config`: as it was given on this host, if it was."""
    found = dict(versions)
    if config is not None:
        found |= _flat(msgspec.to_builtins(config))
    found["the corpus"] = f"{corpus.bytes:,} bytes, SHA-256 {corpus.sha256[:12]}…"
    return found | {f"the preset {name}": _digest(preset) for name, preset in presets.items()}


def differences(hosts: Sequence[HostInfo], found: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each fact that is not that of process 0. What another process does not have is no difference."""
    return [
        f"{fact}: {theirs[fact]} on process {host.process} ({host.name}), {first} on process 0: make them the same"
        for host, theirs in zip(hosts[1:], found[1:], strict=True)
        for fact, first in found[0].items()
        if theirs.get(fact, first) != first
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return {key: value for key, value in flat.items() if key.partition(".")[0] not in OF_THE_HOST}


def _digest(preset: Preset) -> str:
    return f"SHA-256 {hashlib.sha256(msgspec.json.encode(preset.laid_out)).hexdigest()[:12]}…"
