"""Loads the newest whole copy of the state that hosts keep in memory."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import msgspec
import numpy as np
from etils import epath
from msgspec import Struct

from ..base import figures
from ..checkpoint.directory import check_digests, state_names
from ..checkpoint.loader import receipt
from ..checkpoint.manifest import FILE_NAME, Manifest, read_manifest
from ..distributed.cluster import Cluster
from ..distributed.outcomes import UNSUCCESSFUL, Damaged
from ..models.task import Task, TrainState
from ..program.program import Program
from ..wire.events import CopyFailed, Event, Restored
from .copies import Copies, Copy
from .part import INDEX, SHARDS, Part, Piece, check_part, parts_in
from .peers import Peer
from .shares import Region, region_of

Read = Callable[[Piece], np.ndarray]
"""Returns the bytes of a piece, uint8."""


class Holding(Struct, frozen=True):
    """What a process has found in the memory of its host."""

    parts: list[Part] = []
    """Parts that are as they were written."""
    problems: list[str] = []
    """Why others are not."""


class MemoryLoader:
    """Finds and loads a copy when an epoch begins. All processes call the same in the same order."""

    def __init__(self, copies: Copies, task: Task, cluster: Cluster, publish: Callable[[Event], None]) -> None:
        self.copies = copies
        """What makes copies."""
        self._task, self._cluster, self._publish = task, cluster, publish
        self._peers: dict[int, Peer] = {}
        self._found: list[Holding] = []
        """What each process has found."""
        self._holders: dict[Part, int] = {}
        """By part, a process whose host has it: of this host, if it has."""
        self.manifest: Manifest | None = None
        """That of the copy to resume from; None if there is none."""

    def find(self) -> Manifest | None:
        """Finds the newest copy of which all parts are left, and returns its manifest; None if there is none.

        Parts that are damaged are not used, which is reported, as is a copy of which parts are missing.
        """
        found = self._found = self._cluster.gather(self._holding(), Holding)
        problems = [problem for holding in found for problem in holding.problems]
        known = {part.copy for holding in found for part in holding.parts}
        whole = [copy for copy in known if not _missing(copy, found)]
        if known and not whole:
            problems.append(_words(max(known), _missing(max(known), found)))
        if problems:
            self._publish(CopyFailed(step=max(known)[0] if known else 0, problems=problems))
        if whole:
            self._choose(max(whole), found)
            try:
                self.manifest = self._cluster.together(self._read_manifest)
            except UNSUCCESSFUL as error:
                self._publish(CopyFailed(step=max(whole)[0], problems=list(error.problems)))
        return self.manifest

    def load(self, program: Program) -> tuple[TrainState, Restored]:
        """Returns the state with the program's shardings, after comparing its digests, and the receipt.

        The copy is kept until the next one is complete. Raises Damaged; Failure if a host that has a part is gone.
        """
        began = time.perf_counter()
        manifest = self.manifest
        assert manifest
        abstract = program.placement.abstract_state(self._task)
        state = self._cluster.together(lambda: self._assembled(abstract))
        names = state_names(self._task)
        self._cluster.collectively(lambda: check_digests(state, names, manifest, program.digest))
        self.copies.keep(next(iter(self._holders)).copy)
        return state, receipt(manifest, program, began, from_memory=True)

    def discard(self) -> None:
        """Deletes all copies: the run resumes from a checkpoint, or from the beginning."""
        self.manifest = None
        self.copies.clear()

    def hand_over(self, processes: int) -> None:
        """Has the hosts of the first processes keep the whole copy: the others do not take part in the next epoch."""
        hosts = self.copies.neighbours.hosts
        staying, problems = set(hosts[:processes]), list[str]()
        for part in self._holders:
            having = [process for process, holding in enumerate(self._found) if part in holding.parts]
            if having[0] == self._cluster.process and staying.isdisjoint(hosts[process] for process in having):
                problems += self.copies.send(part, part.process % processes)
        if any(problems := self.copies.of_all(problems)) and self.manifest:  # nobody leaves before all are done
            self._publish(CopyFailed(step=self.manifest.step, problems=problems))

    def _holding(self) -> Holding:
        """Checks the parts on this host, of which each of its processes takes some."""
        folder, neighbours, process = self.copies.folder, self.copies.neighbours, self._cluster.process
        here = neighbours.here
        parts: list[Part] = []
        problems: list[str] = []
        for part in parts_in(folder)[here.index(process) :: len(here)]:
            try:
                check_part(folder, part)
                parts.append(part)
            except Damaged as error:
                problems.append(
                    f"what process {process} found in {folder / part.name}, a part of the copy of step {part.step:,}, "
                    f"is damaged and not used: {'; '.join(error.problems)}"
                )
        return Holding(parts, problems)

    def _choose(self, copy: Copy, found: Sequence[Holding]) -> None:
        here = self.copies.neighbours.here
        for process in sorted(range(len(found)), key=lambda process: process not in here):
            for part in found[process].parts:
                if part.copy == copy:
                    self._holders.setdefault(part, process)

    def _is_here(self, part: Part) -> bool:
        return self._holders[part] in self.copies.neighbours.here

    def _read_manifest(self) -> Manifest:
        """Reads it on this host if that has any part, else on another."""
        part = min(self._holders, key=lambda part: not self._is_here(part))
        if self._is_here(part):
            return read_manifest(epath.Path(self.copies.folder / part.name))
        with ExitStack() as stack, TemporaryDirectory() as folder:
            (Path(folder) / FILE_NAME).write_bytes(self._peer(part, stack).read(part, FILE_NAME))
            return read_manifest(epath.Path(folder))

    def _peer(self, part: Part, stack: ExitStack) -> Peer:
        """Returns a connection to the process that has the part, one for all parts, closed at the end of `stack`."""
        holder = self._holders[part]
        if holder not in self._peers:
            self._peers[holder] = stack.enter_context(self.copies.neighbours.peer(holder))
            stack.callback(self._peers.pop, holder)
        return self._peers[holder]

    def _assembled(self, abstract: TrainState) -> TrainState:
        """Returns the state, of which each process reads what its devices hold."""
        leaves, structure = jax.tree.flatten(abstract)
        with ExitStack() as stack:
            pieces: list[list[tuple[Piece, Read]]] = [[] for _ in leaves]
            for part in self._holders:
                found, read = self._opened(part, stack)
                for piece in found:
                    pieces[piece.leaf].append((piece, read))
            return structure.unflatten([_array(*pair) for pair in zip(leaves, pieces, strict=True)])

    def _opened(self, part: Part, stack: ExitStack) -> tuple[list[Piece], Read]:
        """Returns which pieces a part has, and how to read them."""
        if self._is_here(part):
            folder = self.copies.folder / part.name
            index, shards = (folder / INDEX).read_bytes(), folder / SHARDS
            read = partial(np.fromfile, shards, np.uint8)
            return _decoded(index), lambda piece: read(count=piece.size, offset=piece.offset)
        peer = self._peer(part, stack)
        return _decoded(peer.read(part, INDEX)), lambda piece: np.frombuffer(
            peer.read(part, SHARDS, piece.offset, piece.size), np.uint8
        )


def _decoded(index: bytes) -> list[Piece]:
    return msgspec.json.decode(index, type=list[Piece])


def _missing(copy: Copy, found: Sequence[Holding]) -> list[int]:
    """Returns the processes whose parts of a copy are not left."""
    left = {part.process for holding in found for part in holding.parts if part.copy == copy}
    return [process for process in range(copy[2]) if process not in left]


def _words(copy: Copy, missing: Sequence[int]) -> str:
    step, _, processes = copy
    named = figures.listed([str(process) for process in missing], 4)
    return (
        f"the copy of step {step:,} in host memory lacks what process {named} of {processes} had, which was on no host "
        "that is left: the run resumes from the newest checkpoint"
    )


def _array(leaf: jax.ShapeDtypeStruct, pieces: Sequence[tuple[Piece, Read]]) -> jax.Array:
    """Returns an array of which each device gets its shard. Raises Damaged if a part of it is missing."""

    @cache
    def data(number: int) -> np.ndarray:
        piece, read = pieces[number]
        return read(piece).view(leaf.dtype).reshape([end - first for first, end in piece.region])

    @cache
    def shard(wanted: Region) -> np.ndarray:
        out, filled = np.empty([end - first for first, end in wanted], leaf.dtype), 0
        for number, (piece, _) in enumerate(pieces):
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, piece.region, strict=True)]
            if all(first < end for first, end in both):
                out[_within(both, wanted)] = data(number)[_within(both, piece.region)]
                filled += math.prod(end - first for first, end in both)
        if filled != out.size:
            raise Damaged(f"{filled:,} of {out.size:,} elements of an array {leaf.dtype} {list(leaf.shape)} are left")
        return out

    def at(index: tuple[slice, ...] | None) -> np.ndarray:
        return shard(region_of(index or (), leaf.shape))

    return jax.make_array_from_callback(leaf.shape, leaf.sharding, at)


def _within(region: Sequence[tuple[int, int]], outer: Region) -> tuple[slice, ...]:
    return tuple(slice(first - start, end - start) for (first, end), (start, _) in zip(region, outer, strict=True))
