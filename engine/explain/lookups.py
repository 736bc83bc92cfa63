"""Lookups at each position of a dim, such as `log_probs[jnp.arange(B), labels]`, or the rows of a cache in
`cache.at[jnp.arange(B), positions].set(keys)`. Where the same axes split that dim of the operand and of the indices,
each device looks up its own part. XLA's partitioner sees it (`GetGatherScatterIndexParallelDims`), Shardy's passes only
if the dim is a batching dim."""

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .attributes import CONSTANTS, RULE, SHARDING, owner_of, type_of, walked
from .passes import RESHAPE, add_rules

LOOKUPS = (LOOKUP, SCATTER) = ("stablehlo.gather", "stablehlo.scatter")
"""A lookup and its gradient."""
LOOKUP_DIMS = (
    *("dimension_numbers", stablehlo.GatherDimensionNumbers),
    *("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims"),
    *("start_index_map", "index_vector_dim"),
)
"""The attribute that says what each dim is, its class, and its parts."""
SCATTER_DIMS = (
    *("scatter_dimension_numbers", stablehlo.ScatterDimensionNumbers),
    *("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims"),
    *("scattered_dims_to_operand_dims", "index_vector_dim"),
)
BROADCAST = "stablehlo.broadcast_in_dim"


def batch_lookups(module: Any) -> None:
    """Writes the dims of which a lookup takes each position as batching dims, in place. Raises UserError."""
    for op in walked(module, *LOOKUPS):
        columns = owner_of(op.operands[1])
        if columns is not None and columns.name == "stablehlo.concatenate":
            _batch(op, columns)
    add_rules(module)


def _batch(op: Any, columns: Any) -> None:
    """`columns`: the indices, joined of those along each dim of the operand."""
    attribute, form, *names = LOOKUP_DIMS if op.name == LOOKUP else SCATTER_DIMS
    numbers = form(op.attributes[attribute])
    window, single, batching, batching_indices, looked_up, along = (getattr(numbers, name) for name in names)
    if ir.IntegerAttr(columns.attributes["dimension"]).value != along or len(columns.operands) != len(looked_up):
        return
    batches, rest = dict(zip(batching, batching_indices, strict=True)), dict[int, Any]()
    (sizes, _), (shape, _) = (type_of(each) for each in op.operands[:2])
    known = [*batches.values(), *map(_counted, columns.operands)]
    for dim, index in zip(looked_up, columns.operands, strict=True):
        counted = _counted(index)  # unless another dim has the same positions, as in a diagonal
        if dim in single and counted is not None and known.count(counted) == 1 and sizes[dim] == shape[counted]:
            batches[dim] = counted
        else:
            rest[dim] = index
    if not rest or len(rest) == len(looked_up):
        return
    indices, *others = rest.values()
    with op.location, ir.InsertionPoint(op):
        if others:
            indices = stablehlo.concatenate([indices, *others], along)
            if SHARDING in columns.attributes:
                indices.owner.attributes[SHARDING] = columns.attributes[SHARDING]
        batched, of_indices = zip(*sorted(batches.items()), strict=True)
        single = [dim for dim in single if dim not in batches]
        op.attributes[attribute] = form.get(window, single, batched, of_indices, list(rest), along)
    if RULE in op.attributes:
        del op.attributes[RULE]
    op.operands[1] = indices


def _counted(value: Any) -> int | None:
    """The dim along which the elements of an array are their positions: 0, 1, 2, …; None if there is none."""
    op = owner_of(value)
    if op is None:
        return None
    if op.name == "stablehlo.iota":
        return ir.IntegerAttr(op.attributes["iota_dimension"]).value
    if op.name in CONSTANTS:
        places = np.array(op.attributes["value"])
        dims = [dim for dim, size in enumerate(places.shape) if size > 1]
        return dims[0] if len(dims) == 1 and (places.ravel() == np.arange(places.size)).all() else None
    if op.name == "stablehlo.select" and _is_unchanged(op.operands[0], op.operands[2]):
        return _counted(op.operands[2])
    if op.name not in (BROADCAST, RESHAPE, "stablehlo.convert") or (dim := _counted(op.operands[0])) is None:
        return None
    if op.name == BROADCAST:
        return ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])[dim]
    return _reshaped(dim, type_of(op.operands[0])[0], type_of(value)[0]) if op.name == RESHAPE else dim


def _reshaped(dim: int, before: list[int], after: list[int]) -> int | None:
    """Where a dim is after a reshape that only adds or drops dims of one element; None after others."""
    kept, new = ([place for place, size in enumerate(shape) if size > 1] for shape in (before, after))
    alike = [before[place] for place in kept] == [after[place] for place in new]
    return new[kept.index(dim)] if alike and dim in kept else None


def _is_unchanged(condition: Any, index: Any) -> bool:
    """Whether jax, which adds the size of the dim to a negative index, adds nothing to indices from 0."""
    op = owner_of(condition)
    if op is None or op.name != "stablehlo.compare":
        return _is_zero(condition)
    is_less = "LT" in str(op.attributes["comparison_direction"])
    return is_less and op.operands[0] == index and _is_zero(op.operands[1])


def _is_zero(value: Any) -> bool:
    """Whether a constant has no element but 0, or false."""
    while (op := owner_of(value)) is not None and op.name == BROADCAST:
        value = op.operands[0]
    return op is not None and op.name in CONSTANTS and not np.any(op.attributes["value"])
