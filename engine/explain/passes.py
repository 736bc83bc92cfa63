"""Runs Shardy's passes, which jaxlib carries, on a program: its shardings and collectives without compiling it."""

import math
from typing import Any

import jaxlib
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from ..base.advice import first_line
from ..base.call_graph import walk_of
from ..base.user_error import UserError
from .attributes import FRONTEND, last_of, owner_of, walked
from .graph import CUSTOM_CALL, SHARD_MAP

PIPELINE = "sdy-propagation-pipeline"
PROPAGATE = "sdy-user-priority-propagate"
INSERT = "sdy-insert-explicit-reshards"
RECORD = ("debug-propagation-edge-sharding", "debug-sharding-origins")
"""Options of passes: record from which value each mesh axis came, and where it was first asked for."""
LEGALIZE = "func.func(chlo-legalize-to-stablehlo)"
"""Writes CHLO's operations, such as `chlo.square`, in StableHLO, as the compiler does: no axis crosses them else."""
RAGGED = "chlo.ragged_dot"
NOT_REGISTERED = "sdy-save-module"
CONSTRAIN = "sdy-apply-sharding-constraints"
"""With a `shard_map`, this pass may end the process with SIGSEGV if it records (jaxlib 0.10.2 and 0.12.0)."""
SLICE = ("start_indices", "limit_indices", "strides")
RESHAPE = "stablehlo.reshape"
PAD = ("edge_padding_low", "edge_padding_high", "interior_padding")
CALLS = ("func.call", "call")
MAX_OPERATIONS, MAX_DEPTH = 300_000, 100
Operation = Any


def propagate(module: Operation, records: bool) -> None:
    """Decides the sharding of every value of a module, in place. Raises UserError. `records`: origins in attributes."""
    _require_walkable(module)
    for broadcast in walked(module, "stablehlo.broadcast_in_dim"):
        _normalize(broadcast)
    functions = ir.SymbolTable(module)
    for cut in walked(module, "stablehlo.slice"):
        _fold(cut, functions)
    for reshape in walked(module, RESHAPE):
        _merge(reshape)
    for shard_map in walked(module, SHARD_MAP):
        for product in walked(shard_map, RAGGED):
            _keep_opaque(product)
    before, _ = _pipeline(module)
    stablehlo.register_stablehlo_passes()
    _run(module, [LEGALIZE, *(_recording(before, SHARD_MAP in str(module)) if records else before)])


def _recording(passes: list[str], has_manual: bool) -> list[str]:
    for option in RECORD:
        passes = [
            each if has_manual and CONSTRAIN in each else each.replace(f"{option}=false", f"{option}=true")
            for each in passes
        ]
    if not all(f"{option}=true" in passes[-1] for option in RECORD):
        raise _missing(f"{PROPAGATE} records no origins")
    return passes


def finish_propagation(module: Operation) -> None:
    """Runs the passes between `propagate` and `insert_collectives`. Raises UserError."""
    _, after = _pipeline(module)
    _run(module, ["sdy-remove-propagation-debug-info", *after])


def add_rules(module: Operation) -> None:
    """Says of each operation that lacks it how Shardy splits its dims. Raises UserError."""
    _run(module, ["func.func(sdy-populate-op-sharding-rules)"])


def insert_collectives(module: Operation) -> None:
    """Inserts the collectives that a module needs. Raises UserError."""
    _run(module, [f"func.func({INSERT}{{enable-full-version=true}})", "func.func(sdy-reshard-to-collectives)"])


def _pipeline(module: Operation) -> tuple[list[str], list[str]]:
    """The passes of jaxlib's own pipeline until the propagation, and from there until reshards are inserted."""
    with module.context:
        try:
            text = str(passmanager.PassManager.parse(f"builtin.module({PIPELINE})"))
        except ValueError as error:
            raise _missing(first_line(str(error))) from error
    passes = [each for each in _split(text) if each != NOT_REGISTERED]
    found = [next((index for index, each in enumerate(passes) if name in each), None) for name in (PROPAGATE, INSERT)]
    if None in found or found != sorted(found):  # type: ignore[type-var]
        raise _missing(f"{PIPELINE} has other passes")
    propagates, inserts = found
    return passes[: propagates + 1], passes[propagates + 1 : inserts]  # type: ignore[operator]


def _split(text: str) -> list[str]:
    """The passes of `builtin.module(a{…},func.func(b),c)`."""
    passes, depth = [""], 0
    for character in text.partition("(")[2].removesuffix(")"):
        depth += (character in "({") - (character in ")}")
        if character == "," and not depth:
            passes.append("")
        else:
            passes[-1] += character
    return passes


def _run(module: Operation, passes: list[str]) -> None:
    with module.context:
        try:
            manager = passmanager.PassManager.parse(f"builtin.module({','.join(passes)})")
        except ValueError as error:
            raise _missing(first_line(str(error))) from error
        manager.enable_verifier(False)  # it refuses the origins of loops that the propagation itself records
        try:
            manager.run(module)
        except Exception as error:  # MLIRError, which is not public
            raise UserError(f"Shardy's passes fail on this program: {first_line(str(error))}") from error


def _missing(why: str) -> UserError:
    return UserError(
        f"jaxlib {jaxlib.version.__version__} lacks the passes that explain a program: {why}: use a jaxlib that "
        "shardtui was tested with (0.10.2, 0.12.0)"
    )


def _require_walkable(module: Operation) -> None:
    """Shardy's passes put the function's operations in place of every call, and readers enter every region."""
    sizes, calls, depth = dict[str, int](), dict[str, list[str]](), 0
    for function in module.regions[0].blocks[0].operations:
        if "sym_name" not in function.operation.attributes:
            continue
        name = ir.StringAttr(function.operation.attributes["sym_name"]).value
        found = _inside(function.operation)
        sizes[name], depth = len(found), max([depth, *(level for level, _ in found)])
        callees = (op.attributes["callee"] for _, op in found if op.name in CALLS)
        calls[name] = [ir.FlatSymbolRefAttr(callee).value for callee in callees]
    walk = walk_of("main", sizes, calls)
    if walk.visits > MAX_OPERATIONS or walk.depth + depth > MAX_DEPTH:
        raise UserError(
            f"this program has more than {MAX_OPERATIONS:,} operations with all calls written out, or functions and "
            f"loops within each other more than {MAX_DEPTH} deep: explain a part of it"
        )


def _inside(function: Operation) -> list[tuple[int, Operation]]:
    """The operations of a function, also in regions, each with the number of regions around it."""
    found, waiting = list[tuple[int, Any]](), [(1, function)]
    while waiting:
        level, outer = waiting.pop()
        inner = [op.operation for region in outer.regions for block in region.blocks for op in block.operations]
        found += [(level, op) for op in inner]
        waiting += [(level + 1, op) for op in inner if len(op.regions)]
    return found


def _normalize(operation: Operation) -> None:
    """Writes a broadcast as the compiler has it: a reshape, or a reshape and a broadcast of new dims. Shardy carries
    axes across a reshape before those across a broadcast. Without this, a value may take an axis on a dim where the
    compiler has it on another."""
    value, result = operation.operands[0], operation.results[0]
    before, after = (list(ir.RankedTensorType(each.type).shape) for each in (value, result))
    dims = list(ir.DenseI64ArrayAttr(operation.attributes["broadcast_dimensions"]))
    kept = [dim for dim, size in zip(dims, before, strict=True) if size == after[dim]]
    if dims != sorted(dims) or (len(kept) == len(dims) and math.prod(before) != math.prod(after)):
        return
    with operation.location, ir.InsertionPoint(operation):
        if math.prod(before) == math.prod(after):
            new = stablehlo.reshape(result.type, value)
        else:
            element = ir.RankedTensorType(value.type).element_type
            squeezed = ir.RankedTensorType.get([after[dim] for dim in kept], element)
            new = stablehlo.broadcast_in_dim(result.type, stablehlo.reshape(squeezed, value), kept)
    if FRONTEND in operation.attributes:
        new.owner.attributes[FRONTEND] = operation.attributes[FRONTEND]
    result.replace_all_uses_with(new)
    operation.erase()


def _fold(cut: Operation, functions: ir.SymbolTable) -> None:
    """Writes a slice of a padded value as one pad, as the compiler does: a shift by padding keeps its sharding."""
    begins, ends, strides = (list(ir.DenseI64ArrayAttr(cut.attributes[name])) for name in SLICE)
    pad, call = _called(cut.operands[0], functions)
    if pad is None or pad.name != "stablehlo.pad":
        return
    low, high, between = (list(ir.DenseI64ArrayAttr(pad.attributes[name])) for name in PAD)
    if {*strides, *(each + 1 for each in between)} != {1}:
        return
    padded = ir.RankedTensorType(cut.operands[0].type).shape
    with cut.location, ir.InsertionPoint(cut):
        value, filling = (_at(each, call) for each in pad.operands)
        new = stablehlo.pad(
            value,
            filling,
            [edge - begin for edge, begin in zip(low, begins, strict=True)],
            [edge - (size - end) for edge, size, end in zip(high, padded, ends, strict=True)],
            between,
        )
    cut.results[0].replace_all_uses_with(new)
    cut.erase()
    if call is not None and not any(list(result.uses) for result in call.results):
        call.erase()


def _merge(reshape: Operation) -> None:
    """Lets a reshape of a reshape take what that one takes, as the compiler does: an axis crosses both, even if it does
    not divide a dim in between."""
    value = reshape.operands[0]
    while (maker := owner_of(value)) is not None and maker.name == RESHAPE:
        value = maker.operands[0]
    reshape.operands[0] = value


def _called(value: Operation, functions: ir.SymbolTable) -> tuple[Operation, Operation]:
    """The operation that computes a value, and the call that it is in, as `jnp.pad` is; None without."""
    op = owner_of(value)
    if op is None or op.name not in CALLS:
        return op, None
    function = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
    maker = owner_of(last_of(function.regions[0].blocks[0]).operands[list(op.results).index(value)])
    return (None, None) if maker is None else (maker, op)


def _at(value: Operation, call: Operation) -> Operation:
    """A value of a function at a call of it."""
    if call is None:
        return value
    maker = owner_of(value)
    if maker is None:
        return call.operands[ir.BlockArgument(value).arg_number]
    new = maker.clone().operation
    for position, operand in enumerate(maker.operands):
        new.operands[position] = _at(operand, call)
    return new.results[list(maker.results).index(value)]


def _keep_opaque(operation: Operation) -> None:
    """Replaces a ragged product in a `shard_map` by a kernel's call, as the TPU compiler computes it. `LEGALIZE` would
    write it as products with the kernels of all groups; here no axis has to cross it."""
    result = operation.results[0]
    with operation.location, ir.InsertionPoint(operation):
        name: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get(RAGGED)}
        new = ir.Operation.create(CUSTOM_CALL, [result.type], list(operation.operands), name)
    result.replace_all_uses_with(new.results[0])
    operation.erase()
