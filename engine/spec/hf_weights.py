"""Checks that the tensors of a model of transformers are the parameters of a model, each once."""

from collections.abc import Iterable, Mapping

from ..base import figures
from .hf_tensors import Part, parts_of, unused
from .model_config import ModelConfig
from .safetensors import SIZES, Stored

MOST_NAMED = 5
"""Tensors that a message names."""


def weight_problems(tensors: Mapping[str, Stored], config: ModelConfig, architecture: str) -> list[str]:
    """Returns why these tensors are not all parameters of the model, and no others; empty if they are."""
    expected = tensor_shapes(parts_of(config, architecture, set(tensors)))
    missing = [name for name in expected if name not in tensors]
    others = [name for name in tensors if name not in expected and not unused(name, config)]
    found = [(name, tensors[name], shape) for name, shape in expected.items() if name in tensors]
    named = figures.listed(others, MOST_NAMED)
    return [
        *([f"{figures.listed(missing, MOST_NAMED)}: missing in the files"] if missing else []),
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
    """Returns the shape of each tensor that the parts make up, by name."""
    found: dict[str, list[int]] = {}
    for part in parts:
        rows, *rest = part.file_shape
        found[part.tensor] = [found.get(part.tensor, [0])[0] + rows, *rest]
    return found
