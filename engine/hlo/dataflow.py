"""Traces values of a compiled module to their origin and to their users.

Values are followed through instructions that only move them or change their dtype, into and out of fusions and loops;
sums of gradients also through elementwise ones, to the outputs that they update.
"""

import re
from collections.abc import Callable, Iterator, Sequence, Set

from .live_values import ELEMENTWISE
from .module import BODY, CALLERS, Computation, Instruction, Module

MOVES = {
    *("copy", "copy-start", "copy-done", "bitcast", "convert", "transpose", "reshape", "slice", "dynamic-slice"),
    *("all-gather", "all-gather-start", "all-gather-done", "opt-barrier"),
}
"""Opcodes that only move or convert their first operand."""
SUMS = {*("all-reduce", "all-reduce-start", "all-reduce-done", "reduce-scatter", "async-done"), "dynamic-update-slice"}
"""Opcodes that leave a sum in its place: a gradient's after it, or in the stack of all layers'."""
LIBRARY_PRODUCT = re.compile(r'custom_call_target="__cu(?:blas\$(?:gemm|lt\$matmul)|dnn\$conv)')
"""Matrix products and convolutions that GPU programs leave to cuBLAS and cuDNN, or on AMD's to hipBLAS and MIOpen."""
MAX_STEPS = 1000
"""Steps to follow one value: a module of nested loops could need any number."""

Value = tuple[str, str]
"""The names of a computation and of an instruction in it."""
Follows = Callable[[Instruction, str], bool]
"""Whether an instruction moves its operand of this name to its result."""


def is_product(instruction: Instruction) -> bool:
    if instruction.opcode == "custom-call":
        return bool(LIBRARY_PRODUCT.search(instruction.rest))
    return instruction.opcode in ("dot", "convolution")


class Dataflow:
    """The flow of values through one module."""

    def __init__(self, module: Module) -> None:
        self._computations, self._entry, self._callers = module.computations, module.entry, module.callers
        self._users: dict[str, dict[str, list[Instruction]]] = {}

    def argument(self, where: Computation, name: str) -> int | None:
        """Returns the index of the program's argument that a value is, or is a part of; None if it is computed."""
        value: Value | int | None = where.name, name
        for _ in range(MAX_STEPS):
            if not isinstance(value, tuple):
                return value
            value = self._origin(*value)
        return None

    def is_multiplied(self, where: Computation, name: str) -> bool:
        """Returns whether a matrix product takes the value, which may be moved on the way."""
        return any(is_product(user) for _, user in self._reached([(where.name, name)], _is_moved))

    def outputs(self, where: Computation, name: str, index: int) -> set[int]:
        """Returns the indices of the program's results that are computed element by element from a value: the result
        of an instruction, or element `index` of its tuple."""
        found = [(where.name, name), *self._outside(where.name, name)]
        elements = [element for value in found for element in self._elements(*value, {index})]
        root = self._computations[self._entry].root
        return {
            output
            for (at, each), user in self._reached(elements or found, _is_updated)
            if user is root and at == self._entry
            for output, operand in enumerate(user.operands)
            if operand == each
        }

    def _reached(self, values: Sequence[Value], follows: Follows) -> Iterator[tuple[Value, Instruction]]:
        """Yields the values that these are moved to, each with its users."""
        waiting, seen = [*values], set(values)
        while waiting and len(seen) < MAX_STEPS:
            at, found = waiting.pop()
            for user in self.users(at, found):
                yield (at, found), user
                new = {*self._results(at, found, user, follows)} - seen
                waiting += new
                seen |= new

    def users(self, where: str, name: str) -> list[Instruction]:
        """Returns the instructions of the computation `where` that have `name` as an operand."""
        if where not in self._users:
            users = self._users[where] = dict[str, list[Instruction]]()
            for instruction in self._computations[where].instructions.values():
                for operand in dict.fromkeys(instruction.operands):
                    users.setdefault(operand, []).append(instruction)
        return self._users[where].get(name, [])

    def _origin(self, where: str, name: str) -> Value | int | None:
        """One step back: the value that this one is moved from, or an argument's index. None if it is computed."""
        instruction = self._at(where, name)
        if instruction is None:
            return None
        match instruction.opcode:
            case "parameter":
                return instruction.index if where == self._entry else self._passed(where, instruction.index)
            case "get-tuple-element":
                return self._element(where, instruction.operand, instruction.index)
            case "fusion" | "call":
                return self._root(instruction)
            case opcode:
                return (where, instruction.operand) if opcode in MOVES else None

    def _passed(self, where: str, index: int) -> Value | None:
        """The operand that the caller of a computation passes as this parameter."""
        caller = self._callers.get(where)
        if caller is None or caller[1].opcode == "while":
            return None
        operands = caller[1].operands
        return (caller[0].name, operands[index]) if index < len(operands) else None

    def _element(self, where: str, name: str, index: int) -> Value | None:
        """An element of a tuple. None if a loop changes it."""
        for _ in range(MAX_STEPS):
            instruction = self._at(where, name)
            match instruction.opcode if instruction else None:
                case "tuple" if instruction and index < len(instruction.operands):
                    return where, instruction.operands[index]
                case "opt-barrier" | "copy" if instruction:
                    name = instruction.operand
                case "fusion" | "call" if instruction and (root := self._root(instruction)):
                    where, name = root
                case "while" if instruction and self._is_kept(instruction.attribute(BODY) or "", index):
                    name = instruction.operand
                case "parameter" if where != self._entry and self._is_kept(where, index):
                    caller, loop = self._callers[where]
                    where, name = caller.name, loop.operand
                case _:
                    return None
        return None

    def _is_kept(self, body: str, index: int) -> bool:
        """Whether a loop passes this element of its tuple on unchanged."""
        found = self._computations.get(body)
        root = found.root if found else None
        if not found or not root or root.opcode != "tuple" or body not in self._callers or index >= len(root.operands):
            return False
        element = found.instructions.get(root.operands[index])
        if not element or element.opcode != "get-tuple-element" or element.index != index:
            return False
        source = found.instructions.get(element.operand)
        return source is not None and source.opcode == "parameter" and self._callers[body][1].opcode == "while"

    def _elements(self, where: str, name: str, indices: Set[int]) -> Iterator[Value]:
        """These elements of a tuple."""
        for user in self.users(where, name):
            if user.opcode == "get-tuple-element" and user.index in indices:
                yield where, user.name

    def _results(self, where: str, name: str, user: Instruction, follows: Follows) -> Iterator[Value]:
        """One step forward: the values that `user` moves this one to."""
        if user.opcode == "tuple" or (user.type.startswith("(") and user.opcode in SUMS and follows(user, name)):
            taken = {index for index, operand in enumerate(user.operands) if operand == name}
            for same in [(where, user.name), *self._same_tuples(where, user, follows)]:
                yield from self._elements(*same, taken)
        elif follows(user, name):
            yield where, user.name
            yield from self._outside(where, user.name)
        elif user.opcode in ("fusion", "call"):
            called = user.attribute(CALLERS[user.opcode]) or ""
            taken = {index for index, operand in enumerate(user.operands) if operand == name}
            for each in self._parameters(called):
                if each.index in taken:
                    yield called, each.name

    def _same_tuples(self, where: str, built: Instruction, follows: Follows) -> Iterator[Value]:
        """The tuple under its other names: in loops that start with it, and outside the fusion that returns it."""
        for loop in self.users(where, built.name):
            if loop.opcode == "while" and follows(loop, built.name) and (body := loop.attribute(BODY)):
                yield from ((body, each.name) for each in self._parameters(body))
        yield from self._outside(where, built.name)

    def _outside(self, where: str, name: str) -> Iterator[Value]:
        """The result of the caller, if the value is the root of its computation."""
        if name in self._computations[where].roots and (caller := self._callers.get(where)):
            yield caller[0].name, caller[1].name

    def _parameters(self, computation: str) -> Iterator[Instruction]:
        found = self._computations.get(computation)
        for instruction in found.instructions.values() if found else ():
            if instruction.opcode == "parameter":
                yield instruction

    def _root(self, caller: Instruction) -> Value | None:
        called = self._computations.get(caller.attribute(CALLERS[caller.opcode]) or "")
        return (called.name, called.root.name) if called and called.root else None

    def _at(self, where: str, name: str) -> Instruction | None:
        found = self._computations.get(where)
        return found.instructions.get(name) if found else None


def _is_moved(user: Instruction, name: str) -> bool:
    return (user.opcode in MOVES or user.opcode == "while") and user.operand == name


def _is_updated(user: Instruction, name: str) -> bool:
    """Not by a loop: XLA's CPU compiler makes one of a scatter, which adds an activation to rows of a table."""
    if user.opcode in MOVES:
        return user.operand == name
    return user.opcode in SUMS or bool(ELEMENTWISE.fullmatch(user.opcode))
