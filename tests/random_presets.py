"""Random presets for random models, by seed.

They have meshes of one to four axes, sensible and senseless rules, several axes per dim, overrides, pipelines, mixtures
of experts, odd sizes and explicit axis types.
"""

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import ModelConfig, RunConfig, TrainingConfig
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import parse_preset

from .conftest import tiny_config

AXES = ("data", "fsdp", "model", "seq", "pipeline", "expert")
ROLES: dict[str, tuple[str, ...]] = {
    "data": ("batch",),
    "fsdp": ("batch", "embed"),
    "tensor": ("heads", "mlp", "vocab"),
    "sequence": ("seq",),
    "stages": ("layers",),
    "stages and vocabulary": ("layers", "vocab"),
    "experts": ("experts", "batch"),
    "weights alone": ("embed",),
    "stream": ("activation_embed",),
    "nothing": (),
}
"""The logical axes that a mesh axis splits in sensible presets; the last entries are beginners' mistakes."""
CHANCES = (6, 6, 6, 3, 3, 2, 2, 2, 1, 1)
"""The weights with which `ROLES` are drawn."""
LOGICAL = ("batch", "seq", "keys", "embed", "heads", "head_dim", "mlp", "vocab", "positions", "layers", "qkv", "router")
GLOBS = ("*", "*.kernel", "*.bias", "mu.*", "nu.*", "token.*", "blocks.mlp.*", "*.scale", "batch.*", "*.embedding")


@dataclass(frozen=True)
class Sizes:
    heads: tuple[int, ...] = (2, 4, 8)
    head_dim: tuple[int, ...] = (4,)
    mlp: tuple[int, ...] = (32, 64)
    seq: tuple[int, ...] = (8, 16)
    batch: tuple[int, ...] = (8, 16)
    vocab: tuple[int, ...] = (256,)
    layers: tuple[int, ...] = (2, 4)


TINY = Sizes()
"""Compiles in two seconds."""
ODD = Sizes((1, 3, 5, 6), (3, 4, 7), (15, 24, 40), (6, 9, 12), (1, 3, 6, 12), (97, 256, 300), (1, 2, 3))
"""Sizes with few divisors."""


@dataclass(frozen=True)
class Case:
    seed: int
    devices: int
    config: RunConfig
    text: str = field(repr=False)
    """The preset's TOML."""

    @property
    def preset(self) -> Preset:
        return parse_preset(Path(f"case-{self.seed}.toml"), self.text)

    @property
    def summary(self) -> str:
        model, training = self.config.model, self.config.training
        sizes = {name: getattr(model, name) for name in ("layers", "embed", "heads", "mlp", "vocab_rows", "experts")}
        how = f"remat={model.remat} {model.dtype}, batch {training.batch_size} × {training.seq_len}"
        return f"case {self.seed} on {self.devices}: {sizes} {how}: {'; '.join(self.text.splitlines())}"


def case(seed: int) -> Case:
    """Returns the case of a seed, the same on every Python: tiny, and in one of four cases of odd sizes."""
    chance = random.Random(seed)
    devices = chance.choice((8, 8, 8, 8, 8, 8, 6, 4, 2, 1))
    drawn = ODD if chance.random() < 0.25 else TINY
    while problems_of(config := _config(chance, drawn)):
        pass
    return Case(seed, devices, config, _text(chance, devices, config))


def _config(chance: random.Random, sizes: Sizes) -> RunConfig:
    heads, vocab, seq = chance.choice(sizes.heads), chance.choice(sizes.vocab), chance.choice(sizes.seq)
    experts = chance.choice((2, 4, 8, 3)) if chance.random() < 0.2 else 0
    model = ModelConfig(
        layers=chance.choice(sizes.layers),
        embed=heads * chance.choice(sizes.head_dim),
        heads=heads,
        mlp=chance.choice(sizes.mlp),
        vocab=vocab,
        vocab_rows=vocab if chance.random() < 0.7 else -(-vocab // 16) * 16,
        context=chance.choice((seq, 2 * seq)),
        dropout=chance.choice((0.0, 0.1)),
        remat=chance.random() < 0.3,
        dtype=chance.choice(("auto", "auto", "bfloat16")),
        experts=experts,
        experts_per_token=chance.choice((1, 2)) if experts else 1,
    )
    training = TrainingConfig(batch_size=chance.choice(sizes.batch), seq_len=seq)
    return tiny_config(model=model, training=training)


def _text(chance: random.Random, devices: int, config: RunConfig) -> str:
    mesh = _mesh(chance, devices)
    rules = _rules(chance, list(mesh), config)
    lines = ['axis_types = "explicit"'] if chance.random() < 0.3 else []
    if rules.get("layers") and chance.random() < 0.3:
        lines.append(f"microbatches = {chance.choice((1, 2, 3, 4))}")
    if chance.random() < 0.4:
        mesh[chance.choice(list(mesh))] = -1
    lines += ["[mesh]", *(f"{axis} = {size}" for axis, size in mesh.items())]
    lines += ["[rules]", *(f"{logical} = {_list(axes)}" for logical, axes in rules.items())]
    if chance.random() < 0.25:
        globs = chance.sample(GLOBS, chance.choice((1, 1, 2)))
        lines += ["[overrides]", *(_override(chance, glob, list(mesh)) for glob in globs)]
    if rules.get("layers") and chance.random() < 0.3:
        lines.insert(0, "pipeline_repeats = 2")
    return "\n".join(lines) + "\n"


def _mesh(chance: random.Random, devices: int) -> dict[str, int]:
    """Draws axis sizes, some of them 1, whose product is the number of devices."""
    names = chance.sample(AXES, chance.choice((1, 2, 2, 2, 3, 3, 4)))
    mesh: dict[str, int] = {}
    for name in names[:-1]:
        left = devices // math.prod(mesh.values())
        mesh[name] = chance.choice([size for size in range(1, left + 1) if left % size == 0])
    return mesh | {names[-1]: devices // math.prod(mesh.values())}


def _rules(chance: random.Random, axes: list[str], config: RunConfig) -> dict[str, list[str]]:
    rules: dict[str, list[str]] = {}
    for axis in axes:
        (role,) = chance.choices(list(ROLES.values()), CHANCES)
        dims = role if chance.random() < 0.8 else chance.sample(LOGICAL, chance.choice((1, 2)))
        if chance.random() < 0.2:
            dims = dims[: chance.randrange(len(dims) + 1)]
        for logical in dims:
            if logical == "experts" and not config.model.experts and chance.random() < 0.9:  # type: ignore[union-attr]
                continue
            rules.setdefault(logical, []).append(axis)
    return dict(chance.sample(list(rules.items()), len(rules)))


def _override(chance: random.Random, glob: str, axes: list[str]) -> str:
    left = chance.sample(axes, len(axes))
    spec = [left.pop() if left and chance.random() < 0.4 else "" for _ in range(chance.choice((0, 0, 1, 2)))]
    if chance.random() < 0.3:
        return f'"{glob}" = {{ spec = {_list(spec)}, min_size = {chance.choice((1, 100, 1000))} }}'
    return f'"{glob}" = {_list(spec)}'


def _list(words: list[str]) -> str:
    return f"[{', '.join(repr(word) for word in words)}]".replace("'", '"')
