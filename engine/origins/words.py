"""Words for the operations and tensors of a program."""

from ..base import figures
from .graph import Graph, Operation, Tensor

OPERATIONS = {
    "stablehlo.dot_general": "product",
    "stablehlo.convolution": "convolution",
    "stablehlo.reduce": "reduction",
    "stablehlo.while": "loop",
    "stablehlo.case": "cond",
    "stablehlo.if": "cond",
    "sdy.sharding_constraint": "constraint",
    "sdy.manual_computation": "shard_map",
    "sdy.named_computation": "call",
    "stablehlo.optimization_barrier": "remat",
}
MOVES = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "optimization_barrier", "reshape", "transpose", "bitcast_convert")
}
TRIVIAL = {*MOVES, "sdy.named_computation"}
"""Operations that a chain skips if it has others on the same line."""
NOTABLE = {"product", "convolution", "reduction", "loop", "cond", "gather", "scatter", "concatenate"}
"""Operations that a chain shows rather than others on the same line."""


def word(operation: Operation) -> str:
    """Returns a word for an operation: `product`, `add`."""
    return OPERATIONS.get(operation.name, operation.name.rpartition(".")[2])


def layout(tensor: Tensor) -> str:
    """Returns the mesh axes of each dim: `(data, –, model)`."""
    return figures.spec(tensor.axes)


def name_of(graph: Graph, index: int) -> str:
    """Returns the name that the program gives a tensor, else its shape: `[4, 128, 512]`."""
    tensor = graph.tensors[index]
    return tensor.names[0] if tensor.names and tensor.names[0] else f"[{', '.join(map(str, tensor.shape))}]"


def at(source: str) -> str:
    """Returns ` at model.py:102`; empty without a source."""
    return f" at {figures.short_source(source)}" if source else ""
