"""The operands in whose memory an instruction can write its results, by the rules of XLA's buffer assignment."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .hlo import Computation, Instruction, Module, number
from .trip_counts import CALLS

UPDATES = ("dynamic-update-slice", "scatter")
"""Opcodes that change their first operand in place."""
ELEMENTWISE = re.compile(
    "abs|add|and|atan2|cbrt|ceil|clamp|compare|convert|copy|cosine|divide|exponential(-minus-one)?|floor|is-finite|log|"
    "log-plus-one|logistic|maximum|minimum|multiply|negate|not|or|power|remainder|round-nearest-(afz|even)|rsqrt|select|"
    "shift-(left|right-arithmetic|right-logical)|sign|sine|sqrt|subtract|tan|tanh|xor"
)
"""Opcodes whose result at an index depends on nothing but the operands at that index."""
LOOPS = re.compile(r" kind=k(Loop|Input)")
"""Fusions that are computed element by element; of the second kind, which ends in reductions, only on GPU."""
OF_GPU = re.compile(r" kind=kInput|emitter_backend_config")
"""Only the GPU compiler prints this in the attributes of a fusion."""


def updated(module: Module, each: Instruction) -> list[int | None]:
    """Returns for each result the number of the operand that it is an update of; empty if it is none."""
    if each.opcode in UPDATES:
        return [0]
    fused = _fused(module, each)
    return [_updates(fused, root) for root in _roots(fused)] if fused else []


def elementwise(module: Module, each: Instruction) -> list[tuple[int, int]]:
    """Returns results and operands, by number, of which the result at an index needs only the element at that index.

    So the operand's memory can be reused if nothing reads it later and the elements are as large. The GPU compiler
    allows it also for one of several results, for other shapes with as many elements, and where other results are
    reductions, which are computed first.
    """
    if ELEMENTWISE.fullmatch(each.opcode):
        return [(0, at) for at in range(len(each.operands))]
    fused = _fused(module, each) if LOOPS.search(each.rest) else None
    if fused is None:
        return []
    names = [root.name for root in _roots(fused)]
    is_gpu = OF_GPU.search(each.rest) is not None
    if len(names) > 1 and not is_gpu:
        return []
    users = _users(fused)
    parameters = [inside for inside in fused.instructions.values() if inside.opcode == "parameter"]
    reached = ((_reached(inside.name, users, names, is_gpu), inside) for inside in parameters)
    return [(names.index(name), _number(inside)) for name, inside in reached if name]


def _fused(module: Module, each: Instruction) -> Computation | None:
    return module.computations.get(each.attribute(CALLS) or "") if each.opcode == "fusion" else None


def _roots(fused: Computation) -> list[Instruction]:
    """The instructions that compute the results of a fusion."""
    root = fused.root
    if root is None:
        return []
    names = root.operands if root.opcode == "tuple" else [root.name]
    return [fused.instructions[name] for name in names if name in fused.instructions]


def _users(fused: Computation) -> Mapping[str, list[Instruction]]:
    """The instructions that read each value."""
    found = defaultdict[str, list[Instruction]](list)
    for each in fused.instructions.values():
        for name in each.operands if each.opcode != "parameter" else ():
            found[name].append(each)
    return found


def _reached(start: str, users: Mapping[str, list[Instruction]], roots: Sequence[str], is_gpu: bool) -> str | None:
    """Returns the only result that is computed from a value element by element; None if there is none, or anything else
    is computed from it."""
    found, seen, left = set[str](), {start}, [start]
    while left:
        name = left.pop()
        found |= {name} & set(roots)
        for user in users.get(name, []):
            if user.opcode == "tuple" or (is_gpu and user.opcode == "reduce"):
                continue
            if not _keeps_index(user, is_gpu):
                return None
            if user.name not in seen:
                seen.add(user.name)
                left.append(user.name)
    return found.pop() if len(found) == 1 else None


def _keeps_index(each: Instruction, is_gpu: bool) -> bool:
    """Whether an element of the result needs only the element at the same place of its operands. On GPU the place is
    the one in memory, whatever the shape."""
    if is_gpu and each.opcode in ("bitcast", "copy"):
        return each.opcode == "bitcast"
    return ELEMENTWISE.fullmatch(each.opcode) is not None


def _number(parameter: Instruction) -> int:
    return number(parameter.rest[: parameter.closing].strip())


def _updates(fused: Computation, root: Instruction) -> int | None:
    """The number of the parameter that the result of a fusion is an update of; None if it is none."""
    found: Instruction | None = root
    while found and found.opcode == "bitcast":
        found = fused.instructions.get(found.operand)
    if found is None or found.opcode not in UPDATES:
        return None
    changed = fused.instructions.get(found.operand)
    while changed and changed.opcode == "bitcast":
        changed = fused.instructions.get(changed.operand)
    return _number(changed) if changed and changed.opcode == "parameter" else None
