"""Plans a slice: the engine traces every preset, and then compiles each in a process of its own."""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ...engine.base.machine import has_room
from ...engine.base.user_error import UserError, noting
from ...engine.hlo.step_cost import StepCost
from ...engine.planning import compilers
from ...engine.planning.finalists import MOST_PROGRAMS, is_far_too_large, next_row, next_to_compile
from ...engine.planning.goal import CurvePoint, Goal, SearchRequest, configured, pick, point_of, ranked
from ...engine.planning.ranking import Board, Row
from ...engine.spec.config import RunConfig
from ...engine.spec.preset import reference
from ...engine.spec.preset_files import is_pitfall
from ...engine.spec.preset_reader import load_preset, load_presets
from ...engine.spec.topology import load_topology
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import EngineReady
from ...engine.wire.step_breakdown import StepBreakdown
from .engine_process import NICENESS, Answer, EngineProcess

TRACED_SECONDS = 0.5
"""Seconds between two looks at what is traced so far."""


@dataclass(eq=False)
class Compiling:
    """A compilation of a row of the board."""

    index: int
    preset: str
    """The title of its row: its name and settings."""
    number: int
    """From 1."""
    count: int
    """How many presets are to be compiled; of a search, at most."""
    began: float
    """Start, in seconds of `time.monotonic`."""
    process: EngineProcess
    is_cancelled: bool = False


def usual_presets(config: RunConfig) -> tuple[list[str], list[str]]:
    """Returns all presets but the pitfalls, and the run's own, by name or file; and problems of preset files."""
    presets, problems = load_presets()
    found = [preset.reference for preset in presets if not is_pitfall(preset.name)]
    with noting(problems):
        found.append(load_preset(config.preset).reference)
    return list(dict.fromkeys(found)), problems


class Planner:
    """Computes the board of one slice, with as many compilations at a time as this machine has room for."""

    def __init__(
        self,
        config: RunConfig,
        topology: str,
        presets: Sequence[str],
        compiles: bool,
        nice: int = 0,
        breakdowns: bool = False,
        search: SearchRequest | None = None,
    ) -> None:
        """`presets`: names or files, compiled however large they are; default: the usual ones, or none with `search`.

        `nice`: added to the niceness of compilers. `breakdowns`: compiled costs have the time of each part."""
        self.config = config
        """The request; a search changes its settings."""
        self._topology = topology
        usual, problems = usual_presets(config)
        self._presets = list(presets or ([] if search else usual))
        self._is_named = bool(presets)
        self.search = search
        self._nice = nice
        self._has_breakdowns = breakdowns
        self.compiles = compiles and compilers.missing(load_topology(topology)) is None
        self._jobs: dict[asyncio.Task[Answer], Compiling] = {}
        self._tried: set[str] = set()
        self._compiled_since = self._last_ended = 0.0  # when the first compilation began, and the last one ended
        self.preset_problems: list[str] = [] if presets else problems
        self.board: Board | None = None
        """The board so far; None before the estimates."""
        self.began = time.monotonic()
        """In seconds of `time.monotonic`, as all moments here."""
        self.curve: list[CurvePoint] = []
        """Each time that a search found a better candidate."""
        self.is_out_of_time = False

    @property
    def goal(self) -> Goal | None:
        """Of a search; None for a plan."""
        return self.search.goal if self.search else None

    @property
    def running(self) -> list[Compiling]:
        return list(self._jobs.values())

    @property
    def compiling(self) -> Compiling | None:
        return next(iter(self.running), None)

    @property
    def is_waiting(self) -> bool:
        """Whether all that is to be compiled now waits for the compilations of other plans on this machine."""
        return bool(self._jobs) and all(job.process.is_waiting for job in self.running)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end, at least 1: of a search at most; of a plan by the compilations that have ended."""
        now, ended = time.monotonic(), len(self._tried) - len(self._jobs)
        if (left := self._timeout()) is not None:
            return max(1.0, left)
        if not self.compiling or not ended:
            return None
        seconds_each = (self._last_ended - self._compiled_since) / ended
        return max(1.0, seconds_each * (self.compiling.count - ended) - (now - self._last_ended))

    async def boards(self) -> AsyncIterator[Board]:
        """Yields the board of layouts, then with more and more traced costs, then as each compilation begins and ends.
        Raises UserError; NoAnswer if the engine fails."""
        self.began = time.monotonic()
        async for traced in self._traced():
            self.board = traced
            yield traced
        assert self.board, "the engine answers, or it has failed"
        try:
            while self.compiles:
                while (not self._jobs or has_room(len(self._jobs))) and (index := self._next()) is not None:
                    self._start(index)
                    yield self.board
                if not self._jobs:
                    return
                done, _ = await asyncio.wait(self._jobs, timeout=self._timeout(), return_when=FIRST_COMPLETED)
                self.is_out_of_time = not done
                if not done:
                    return
                for task in done:
                    self._end(task)
                    yield self.board
                    if any(line.startswith("--topology") for line in task.result().messages):
                        return  # the compiler does not know the slice, whatever the preset
        finally:
            for task in self._jobs:
                task.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)
            self._jobs.clear()

    async def _traced(self) -> AsyncIterator[Board]:
        """Yields boards with more and more traced costs, of a search with its candidates after the named presets."""
        if self.search is None or self.search.is_mesh_fixed:
            async for board in self._asked("plan", *self._presets):
                yield board
            return
        found = await _last(self._asked("search", msgspec.json.encode(self.search).decode()))
        known = (await _last(self._asked("plan", *self._presets))).rows if self._presets else []
        titles = {row.title for row in known}
        rows = [row for row in found.rows if row.title not in titles]
        self._presets += [row.preset for row in rows]
        yield msgspec.structs.replace(found, rows=[*known, *rows])

    async def _asked(self, question: str, *about: str) -> AsyncIterator[Board]:
        """Yields the engine's answers, the last one in any case."""
        process, seen = EngineProcess(self._nice), b""
        task = asyncio.create_task(process.ask(question, self.config, self._topology, *about))
        try:
            is_done = False
            while not is_done:
                await asyncio.wait([task], timeout=TRACED_SECONDS)
                is_done = task.done()  # also while the board before was shown
                line = task.result().checked().last_line if is_done else process.last_line
                if line.startswith(b"{") and line != seen:
                    seen = line
                    yield msgspec.json.decode(line, type=Board)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def breakdown(self, title: str) -> StepBreakdown:
        """Returns where the time of a step goes. Raises UserError if that is unknown, NoAnswer if the engine fails."""
        answer = await EngineProcess(self._nice).ask("compile", *self.subject(title))
        found = msgspec.json.decode(answer.checked().last_line, type=StepCost).breakdown
        if found is None:
            slices = load_topology(self._topology).title
            raise UserError(f"{title} on {slices}: its program is too large or too long, or has no times, as on GPUs")
        return found

    def subject(self, title: str) -> tuple[RunConfig, str, str]:
        assert self.board is not None
        at = [row.title for row in self.board.rows].index(title)
        return configured(self.config, self.board.rows[at].settings), self._topology, self._presets[at]

    def cancel(self) -> None:
        if job := self.compiling:
            job.is_cancelled = True
            job.process.kill()

    @property
    def _rows(self) -> list[Row]:
        return self.board.rows if self.board else []

    def _next(self) -> int | None:
        """Returns the index of the row to compile next."""
        if self._timeout() == 0:
            return None
        if self.search and not self.search.is_mesh_fixed:
            running = {job.index for job in self.running}
            rows = [row for place, row in enumerate(self._rows) if place not in running]
            row = next_to_compile(rows, self.search.goal)
        else:
            row = next((row for row in self._worth if row.title not in self._tried), None)
        if row is None:
            return self._add_change() if self.search and self.search.is_mesh_fixed else None
        return next(index for index, each in enumerate(self._rows) if each is row)

    def _add_change(self) -> int | None:
        """Adds the row of a preset with other settings that is to be compiled next, and returns its index."""
        assert self.board
        for preset in dict.fromkeys(self._presets):
            rows = [row for row, own in zip(self._rows, self._presets, strict=True) if own == preset]
            if row := next_row(rows, self.config, load_preset(preset), load_topology(self._topology).devices):
                self.board = msgspec.structs.replace(self.board, rows=[*self._rows, row])
                self._presets.append(preset)
                return len(self._rows) - 1
        return None

    @property
    def _worth(self) -> list[Row]:
        known = [row for row in ranked(self._rows) if row.estimate or row.laid_out]
        return [row for row in known if self._is_named or not is_far_too_large(row.estimate)]

    @property
    def _most(self) -> int:
        """How many rows are to be compiled; of a search at most."""
        if self.search and self.search.is_mesh_fixed:
            return len(set(self._presets)) * MOST_PROGRAMS
        return len(self._rows if self.search else self._worth)

    def _start(self, index: int) -> None:
        row = self._rows[index]
        self._compiled_since = self._compiled_since or time.monotonic()
        self._tried.add(row.title)
        job = Compiling(index, row.title, len(self._tried), self._most, time.monotonic(), EngineProcess(self._nice))
        answer = job.process.ask("compile", *self.subject(row.title))
        self._jobs[asyncio.create_task(answer)] = job

    def _timeout(self) -> float | None:
        """Seconds until a search must end; None for a plan."""
        return self.search and max(0.0, self.began + 60 * self.search.minutes - time.monotonic())

    def _end(self, task: asyncio.Task[Answer]) -> None:
        """Puts the answer of a compilation that has ended into the board."""
        assert self.board
        job = self._jobs.pop(task)
        self._last_ended = time.monotonic()
        rows = [*self._rows]
        row = _with_answer(rows[job.index], task.result(), job.is_cancelled)
        if row.compiled and not self._has_breakdowns:
            row = msgspec.structs.replace(row, compiled=msgspec.structs.replace(row.compiled, breakdown=None))
        rows[job.index] = row
        self.board = msgspec.structs.replace(self.board, rows=rows)
        if self.search and (best := pick([row for row in rows if row.compiled], self.search.goal)):
            point = point_of(best, self.search.goal, time.monotonic() - self.began)
            self.curve += [point] if not self.curve or point.title != self.curve[-1].title else []


async def _last(boards: AsyncIterator[Board]) -> Board:
    return [board async for board in boards][-1]


def _with_answer(row: Row, answer: Answer, is_cancelled: bool) -> Row:
    if not answer.status:
        cost = msgspec.json.decode(answer.last_line, type=StepCost)
        return msgspec.structs.replace(row, compiled=cost, problems=[*row.problems, *answer.messages])
    why = ["cancelled"] if is_cancelled else answer.problems
    return msgspec.structs.replace(row, problems=[*row.problems, *(f"not compiled: {line}" for line in why)])


async def estimates(config: RunConfig, ready: EngineReady, presets: Iterable[PresetInfo]) -> dict[str, Row]:
    config = msgspec.structs.replace(config, platform=ready.devices[0].platform)
    names = [reference(info.name, info.source) for info in presets]
    planner = Planner(config, str(len(ready.devices)), names, compiles=False, nice=NICENESS)
    board = await _last(planner.boards())
    return {row.preset: _with_capacity(row, ready.memory_limit) for row in board.rows}


def _with_capacity(row: Row, limit: int | None) -> Row:
    cost = row.estimate and msgspec.structs.replace(row.estimate, capacity_bytes=limit)
    return msgspec.structs.replace(row, estimate=cost)
