"""The tensor of Hugging Face's `transformers` that holds each part of each parameter, and checks of them.

Dims as in decoder.py, and K heads of keys.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..base import formatting
from .model_config import ModelConfig
from .safetensors import SIZES, Stored

Shape = tuple[int, ...]
Index = tuple[int | slice, ...]
ALL = slice(None)
MOST_NAMED = 5
TABLE, OUTPUT = "token.embedding", "lm_head.weight"
"""The parameter of the token table, and the output's tensor."""


class Part(NamedTuple):
    """A part of a parameter: a tensor of a file, or some of its rows."""

    tensor: str
    parameter: str
    at: Index
    shape: Shape
    file_shape: Shape
    """The shape of these rows of the tensor."""
    is_transposed: bool = False
    """Whether the file has the output of a linear map first."""
    rows: slice = ALL

    def from_file(self, rows: Any) -> Any:
        """Returns the part of the parameter for these rows of the tensor."""
        return (rows.T if self.is_transposed else rows).reshape(self.shape)


def parts_of(config: ModelConfig, architecture: str, names: set[str] | None = None) -> Iterator[Part]:
    """Yields all parts of all parameters: each element is in one of them.

    `names`: the tensors of the files. GPT-2's first files name tensors without `transformer.`; files of a model with
    tied tables may have the output's only.
    """
    names = names or set()
    is_short = "wte.weight" in names
    for part in _gpt2(config) if architecture == "GPT2LMHeadModel" else _Llama(config, architecture):
        tensor = part.tensor.removeprefix("transformer.") if is_short else part.tensor
        if config.tied and part.parameter == TABLE and tensor not in names and OUTPUT in names:
            tensor = OUTPUT
        yield part._replace(tensor=tensor)


def tied_tensors(config: ModelConfig, architecture: str, names: set[str]) -> tuple[str, str] | None:
    """Returns the names of the tied tables, if the files have both."""
    table = next(part.tensor for part in parts_of(config, architecture, names) if part.parameter == TABLE)
    return (table, OUTPUT) if config.tied and OUTPUT in names - {table} else None


def unused(name: str, config: ModelConfig) -> bool:
    """Returns whether a tensor without a parameter is no error: a mask, frequencies, the copy of a tied table."""
    return name.endswith((".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")) or (
        config.tied and name == OUTPUT
    )


class _Llama:
    def __init__(self, config: ModelConfig, architecture: str) -> None:
        self._config, self._architecture = config, architecture

    def __iter__(self) -> Iterator[Part]:
        config = self._config
        table = config.vocab_rows, config.embed
        yield _plain("model.embed_tokens.weight", TABLE, (), table)
        yield _plain("model.norm.weight", "norm.scale", (), (config.embed,))
        if not config.tied:
            yield _plain(OUTPUT, "output.embedding", (), table)
        for layer in range(config.layers):
            yield from self._norms(layer)
            yield from self._attention(layer)
            yield from self._experts(layer) if config.experts else self._mlp(layer)

    def _norms(self, layer: int) -> Iterator[Part]:
        after = "mlp_norm" if self._config.norm_places == "pre" else "attention_post_norm"
        names = {
            "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": after},
            "post": {"post_attention_layernorm": after, "post_feedforward_layernorm": "mlp_post_norm"},
            "both": {
                "input_layernorm": "attention_norm",
                "post_attention_layernorm": after,
                "pre_feedforward_layernorm": "mlp_norm",
                "post_feedforward_layernorm": "mlp_post_norm",
            },
        }
        for theirs, ours in names[self._config.norm_places].items():
            name = f"model.layers.{layer}.{theirs}.weight"
            yield _plain(name, f"blocks.{ours}.scale", (layer,), (self._config.embed,))

    def _attention(self, layer: int) -> Iterator[Part]:
        config, place = self._config, f"model.layers.{layer}.self_attn"
        query, key = (config.heads, config.head_dim), (config.key_heads, config.head_dim)
        grouped = {"q": ("query", ()), "k": ("kv", (0,)), "v": ("kv", (1,))}
        together = {name: ("qkv", (number,)) for number, name in enumerate("qkv")}
        starts = {"q": 0, "k": math.prod(query), "v": math.prod(query) + math.prod(key)}
        for name, (ours, at) in (grouped if config.is_grouped else together).items():
            shape = query if name == "q" else key
            fused = self._architecture == "Phi3ForCausalLM"
            tensor = f"{place}.{'qkv' if fused else name}_proj"
            rows = slice(starts[name], starts[name] + math.prod(shape)) if fused else ALL
            index = (layer, ALL, *at)
            kernel = f"blocks.attention.{ours}.kernel"
            yield _linear(f"{tensor}.weight", kernel, index, (config.embed,), shape, rows)
            if config.biases != "none":
                yield _vector(f"{tensor}.bias", f"blocks.attention.{ours}.bias", (layer, *at), shape)
        yield _linear(f"{place}.o_proj.weight", "blocks.attention.out.kernel", (layer,), query, (config.embed,))
        if config.biases in ("all", "attention"):
            yield _vector(f"{place}.o_proj.bias", "blocks.attention.out.bias", (layer,), (config.embed,))
        if config.query_norm != "none":
            for theirs, ours, shape in (("q", "query", query), ("k", "key", key)):
                size = shape if config.query_norm == "full" else shape[1:]
                yield _vector(f"{place}.{theirs}_norm.weight", f"blocks.attention.{ours}_norm.scale", (layer,), size)

    def _mlp(self, layer: int) -> Iterator[Part]:
        place, fused = f"model.layers.{layer}.mlp", self._architecture == "Phi3ForCausalLM"
        mlp = self._config.mlp
        rows = {"gate": slice(0, mlp), "up": slice(mlp, 2 * mlp), "down": ALL}
        for name in ("gate", "up", "down"):
            tensor = "gate_up" if fused and name != "down" else name
            yield self._matrix(f"{place}.{tensor}_proj.weight", name, (layer,), rows[name] if fused else ALL)
            if self._config.biases == "all":
                size = self._config.embed if name == "down" else mlp
                yield _vector(f"{place}.{name}_proj.bias", f"blocks.mlp.{name}.bias", (layer,), (size,))

    def _experts(self, layer: int) -> Iterator[Part]:
        is_mixtral = self._architecture == "MixtralForCausalLM"
        place = f"model.layers.{layer}.{'block_sparse_moe' if is_mixtral else 'mlp'}"
        names = {"gate": "w1", "up": "w3", "down": "w2"} if is_mixtral else {}
        width, experts = self._config.embed, self._config.experts
        yield _linear(f"{place}.gate.weight", "blocks.mlp.router.kernel", (layer,), (width,), (experts,))
        for expert in range(experts):
            for name in ("gate", "up", "down"):
                tensor = f"{place}.experts.{expert}.{names.get(name, f'{name}_proj')}.weight"
                yield self._matrix(tensor, f"experts.{name}", (layer, expert), ALL)

    def _matrix(self, tensor: str, name: str, index: Index, rows: slice) -> Part:
        width, mlp = self._config.embed, self._config.mlp
        sizes = ((mlp,), (width,)) if name.endswith("down") else ((width,), (mlp,))
        return _linear(tensor, f"blocks.mlp.{name}.kernel", index, *sizes, rows)


def _gpt2(config: ModelConfig) -> Iterator[Part]:
    """The names of GPT-2, whose kernels have the input first."""
    width, heads = (config.embed,), (config.heads, config.head_dim)
    yield _plain("transformer.wte.weight", TABLE, (), (config.vocab_rows, *width))
    yield _plain("transformer.wpe.weight", "position.embedding", (), (config.context, *width))
    yield from _norm("transformer.ln_f", "norm", (), width)
    for layer in range(config.layers):
        place, at = f"transformer.h.{layer}", (layer,)
        yield from _norm(f"{place}.ln_1", "blocks.attention_norm", at, width)
        yield from _norm(f"{place}.ln_2", "blocks.mlp_norm", at, width)
        for theirs, ours, fan_in, fan_out in (
            ("attn.c_attn", "attention.qkv", width, (3, *heads)),
            ("attn.c_proj", "attention.out", heads, width),
            ("mlp.c_fc", "mlp.up", width, (config.mlp,)),
            ("mlp.c_proj", "mlp.down", (config.mlp,), width),
        ):
            sizes = (*fan_in, *fan_out), (math.prod(fan_in), math.prod(fan_out))
            yield Part(f"{place}.{theirs}.weight", f"blocks.{ours}.kernel", at, *sizes)
            yield _vector(f"{place}.{theirs}.bias", f"blocks.{ours}.bias", at, fan_out)


def _norm(theirs: str, ours: str, at: Index, width: Shape) -> Iterator[Part]:
    yield _plain(f"{theirs}.weight", f"{ours}.scale", at, width)
    yield _plain(f"{theirs}.bias", f"{ours}.bias", at, width)


def _plain(tensor: str, parameter: str, index: Index, shape: Shape) -> Part:
    return Part(tensor, parameter, index, shape, shape)


def _vector(tensor: str, parameter: str, index: Index, shape: Shape) -> Part:
    return Part(tensor, parameter, index, shape, (math.prod(shape),))


def _linear(tensor: str, parameter: str, index: Index, fan_in: Shape, fan_out: Shape, rows: slice = ALL) -> Part:
    sizes = (*fan_in, *fan_out), (math.prod(fan_out), math.prod(fan_in))
    return Part(tensor, parameter, index, *sizes, is_transposed=True, rows=rows)


def weight_problems(tensors: Mapping[str, Stored], config: ModelConfig, architecture: str) -> list[str]:
    """Returns the tensors that are missing, unknown or of the wrong shape."""
    expected = tensor_shapes(parts_of(config, architecture, set(tensors)))
    missing = [name for name in expected if name not in tensors]
    others = [name for name in tensors if name not in expected and not unused(name, config)]
    found = [(name, tensors[name], shape) for name, shape in expected.items() if name in tensors]
    named = formatting.listed(others, MOST_NAMED)
    return [
        *([f"{formatting.listed(missing, MOST_NAMED)}: missing in the files"] if missing else []),
        *([f"{named}: not a parameter of this model: remove it, or give its config.json"] if others else []),
        *(
            f"{name}: has shape {tensor.shape}, and the model needs {shape}: give the config.json of these files, "
            "without --set for sizes"
            for name, tensor, shape in found
            if tensor.shape != shape
        ),
        *(
            f"{name}: dtype {tensor.dtype}: must be one of {', '.join(SIZES)}"
            for name, tensor, _ in found
            if tensor.dtype not in SIZES
        ),
    ]


def tensor_shapes(parts: Iterable[Part]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in parts:
        rows, *rest = part.file_shape
        found[part.tensor] = [found.get(part.tensor, [0])[0] + rows, *rest]
    return found
