"""Where a value of a compiled module comes from, and what takes it: followed through what moves it or changes its
dtype, into fusions and loops and out of them."""

import re
from collections.abc import Iterator

from .hlo import Computation, Instruction, Module, number
from .trip_counts import BODY, CALLS

APPLIED = r"\bto_apply=%?([\w.\-]+)"
INDEX = r"\bindex=(\d+)"
PARAMETER = re.compile(r"(\d{1,9})\)")
MOVES = {
    *("copy", "copy-start", "copy-done", "bitcast", "convert", "transpose", "reshape", "slice", "dynamic-slice"),
    *("all-gather", "all-gather-start", "all-gather-done", "opt-barrier"),
}
"""Of their first operand, nothing is computed."""
CALLERS = {"fusion": CALLS, "call": APPLIED, "while": BODY, "async-start": CALLS}
"""Opcodes that run another computation on their operands; a loop on the tuple that is its one operand."""
LIBRARY_PRODUCT = re.compile(r'custom_call_target="__cublas\$(?:gemm|lt\$matmul)')
MOST_STEPS = 1000
"""In following one value, a module of loops within loops could have as many as it likes."""

Value = tuple[str, str]
"""A computation, and an instruction in it."""


def is_product(instruction: Instruction) -> bool:
    """A matrix product or a convolution."""
    if instruction.opcode == "custom-call":
        return bool(LIBRARY_PRODUCT.search(instruction.rest))
    return instruction.opcode in ("dot", "convolution")


class Dataflow:
    def __init__(self, module: Module) -> None:
        self._computations, self._entry = module.computations, module.entry
        self.callers: dict[str, tuple[Computation, Instruction]] = {}
        """Of a computation the instruction that runs it, and where that stands: one of them, where there are more."""
        for where, instruction in module.instructions():
            role = CALLERS.get(instruction.opcode)
            if role and (called := instruction.attribute(role)):
                self.callers[called] = where, instruction
        self._users: dict[str, dict[str, list[Instruction]]] = {}

    def argument(self, where: Computation, name: str) -> int | None:
        """The number of the program's argument that a value is a part of; None where it is computed."""
        value: Value | int | None = where.name, name
        for _ in range(MOST_STEPS):
            if not isinstance(value, tuple):
                return value
            value = self._origin(*value)
        return None

    def is_multiplied(self, where: Computation, name: str) -> bool:
        """A product takes it."""
        waiting = [(where.name, name)]
        seen = set(waiting)
        while waiting and len(seen) < MOST_STEPS:
            at, found = waiting.pop()
            for user in self.users(at, found):
                if is_product(user):
                    return True
                new = {*self._results(at, found, user)} - seen
                waiting += new
                seen |= new
        return False

    def users(self, where: str, name: str) -> list[Instruction]:
        if where not in self._users:
            users = self._users[where] = dict[str, list[Instruction]]()
            for instruction in self._computations[where].instructions.values():
                for operand in dict.fromkeys(instruction.operands):
                    users.setdefault(operand, []).append(instruction)
        return self._users[where].get(name, [])

    def _origin(self, where: str, name: str) -> Value | int | None:
        """One step back."""
        instruction = self._at(where, name)
        if instruction is None:
            return None
        match instruction.opcode:
            case "parameter":
                index = _parameter(instruction)
                if where == self._entry or index is None:
                    return index
                return self._given(where, index)
            case "get-tuple-element":
                return self._element(where, instruction.operand, _index(instruction))
            case "fusion" | "call":
                return self._root(instruction)
            case opcode:
                return (where, instruction.operand) if opcode in MOVES else None

    def _given(self, where: str, index: int) -> Value | None:
        """To a parameter of a computation that is called."""
        caller = self.callers.get(where)
        if caller is None or caller[1].opcode == "while":
            return None
        operands = caller[1].operands
        return (caller[0].name, operands[index]) if index < len(operands) else None

    def _element(self, where: str, name: str, index: int) -> Value | None:
        """Of a tuple. What a loop changes comes from nowhere."""
        for _ in range(MOST_STEPS):
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
                    caller, loop = self.callers[where]
                    where, name = caller.name, loop.operand
                case _:
                    return None
        return None

    def _is_kept(self, body: str, index: int) -> bool:
        """A loop hands the element on as it is."""
        found = self._computations.get(body)
        root = found.root if found else None
        if not found or not root or root.opcode != "tuple" or body not in self.callers or index >= len(root.operands):
            return False
        element = found.instructions.get(root.operands[index])
        if not element or element.opcode != "get-tuple-element" or _index(element) != index:
            return False
        source = found.instructions.get(element.operand)
        return source is not None and source.opcode == "parameter" and self.callers[body][1].opcode == "while"

    def _results(self, where: str, name: str, user: Instruction) -> Iterator[Value]:
        """One step on: what `user` makes of it, where it only moves it."""
        computation = self._computations[where]
        if user.opcode in MOVES and user.operand == name:
            yield where, user.name
            if user.name in computation.roots and (caller := self.callers.get(where)):
                yield caller[0].name, caller[1].name
        elif user.opcode in ("fusion", "call"):
            called = user.attribute(CALLERS[user.opcode]) or ""
            taken = {index for index, operand in enumerate(user.operands) if operand == name}
            for each in self._parameters(called):
                if _parameter(each) in taken:
                    yield called, each.name
        elif user.opcode == "tuple":
            taken = {index for index, operand in enumerate(user.operands) if operand == name}
            for place, made in self._same_tuples(where, user):
                for element in self.users(place, made):
                    if element.opcode == "get-tuple-element" and _index(element) in taken:
                        yield place, element.name

    def _same_tuples(self, where: str, made: Instruction) -> Iterator[Value]:
        """Where its elements are taken from: in the loops that begin with it, around the fusion that gives it."""
        for loop in self.users(where, made.name):
            if loop.opcode == "while" and (body := loop.attribute(BODY)):
                yield from ((body, each.name) for each in self._parameters(body))
        if made.name in self._computations[where].roots and (caller := self.callers.get(where)):
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


def _parameter(instruction: Instruction) -> int | None:
    found = PARAMETER.match(instruction.rest)
    return int(found[1]) if found else None


def _index(instruction: Instruction) -> int:
    return number(instruction.attribute(INDEX) or "0")
