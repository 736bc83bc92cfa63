"""Plans a slice: the engine estimates every preset by formula at once, then compiles each in a process of its own."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.planning import compilers
from ...engine.planning.ranking import Board, Cost, Row, ranked
from ...engine.spec.config import RunConfig
from ...engine.spec.preset_files import is_pitfall
from ...engine.spec.preset_reader import load_preset, load_presets
from ...engine.spec.topology import load_topology
from ...engine.wire.account import Account
from .engine_process import Answer, EngineProcess

MAX_OVERSIZE = 2.0
"""Presets that need more than this many times the capacity by formula are compiled only if they are named."""


@dataclass(frozen=True)
class Compiling:
    """A preset that is being compiled."""

    preset: str
    number: int
    """Its position among the presets to compile, from 1."""
    count: int
    """How many presets are to be compiled."""
    began: float
    """Start, in seconds of `time.monotonic`."""


def usual_presets(config: RunConfig) -> tuple[list[str], list[str]]:
    """Returns the presets to plan if none is named, by name or file, and problems of preset files that cannot be read.

    The usual presets are all but the pitfalls, and the run's own.
    """
    presets, problems = load_presets()
    found = [preset.reference for preset in presets if not is_pitfall(preset.name)]
    try:
        return list(dict.fromkeys([*found, load_preset(config.preset).reference])), problems
    except Invalid as error:
        return found, [*problems, *error.problems]


class Planner:
    """Computes the board of one slice. Only one process runs at a time."""

    def __init__(
        self,
        config: RunConfig,
        topology: str,
        presets: Sequence[str],
        compiles: bool,
        searches: bool = False,
        nice: int = 0,
        accounts: bool = False,
    ) -> None:
        """Prepares a board; no process is started yet.

        `presets`: names or files, which are compiled however large they are; if there are none, the usual ones are
        planned. `searches`: the best other meshes of the slice are planned, too. `nice`: added to the niceness of the
        compiler's process. `accounts`: compiled costs have where the time of a step goes.
        """
        self._config = config
        self._topology = topology
        usual, problems = usual_presets(config)
        self._presets = list(presets or usual)
        self._is_named = bool(presets)
        self._searches = searches
        self._nice = nice
        self._question = "schedule" if accounts else "compile"
        self.compiles = compiles and compilers.missing(load_topology(topology)) is None
        """Whether the compiler follows the estimates."""
        self._process: EngineProcess | None = None
        self._cancelled = False
        self.preset_problems: list[str] = [] if presets else problems
        """Problems of preset files that cannot be read."""
        self.board: Board | None = None
        """What is known so far; None before the estimates."""
        self.compiling: Compiling | None = None
        """None between compilations."""

    async def boards(self) -> AsyncIterator[Board]:
        """Yields a board of estimates, then one when a compilation begins and one when it has ended.

        Raises Invalid if the request is invalid, and NoAnswer if the engine fails.
        """
        board = self._keep(await self.estimates())
        yield board
        if self._searches:
            board = self._keep(await self._with_search_results(board))
            yield board
        order = self._order(board.rows) if self.compiles else []
        for number, index in enumerate(order, 1):
            row = board.rows[index]
            self._cancelled, self.compiling = False, Compiling(row.preset, number, len(order), time.monotonic())
            try:
                yield board
                answer = await self._ask(self._question, self._topology, self._presets[index])
            finally:
                self.compiling = None
            rows = [*board.rows[:index], self._with_answer(row, answer), *board.rows[index + 1 :]]
            board = self._keep(msgspec.structs.replace(board, rows=rows))
            yield board
            if any(line.startswith("--topology") for line in answer.messages):
                return  # the compiler does not know the slice, whatever the preset

    async def estimates(self) -> Board:
        """Returns the board of estimates. Raises as `boards` does."""
        return await self._board("plan", *self._presets)

    async def _with_search_results(self, board: Board) -> Board:
        """Adds the best meshes of the slice that no preset has. Their presets are named after the mesh."""
        found = await self._board("search")
        rows = [row for row in found.rows if row.preset not in self._presets]
        self._presets += [row.preset for row in rows]
        return msgspec.structs.replace(board, rows=[*board.rows, *rows])

    async def _board(self, question: str, *about: str) -> Board:
        answer = await self._ask(question, self._topology, *about)
        return msgspec.json.decode(answer.checked().last_line, type=Board)

    async def account(self, preset: str) -> Account:
        """Returns where the time of a step goes under a preset. What is compiled already is not compiled again.

        Raises Invalid if that cannot be told, and NoAnswer if the engine fails.
        """
        answer = await EngineProcess(self._nice).ask("schedule", *self.subject(preset))
        found = msgspec.json.decode(answer.checked().last_line, type=Cost).account
        if found is None:
            slices = load_topology(self._topology).title
            raise Invalid(f"{preset} on {slices}: its program is too large or too long, or has no times, as on GPUs")
        return found

    def subject(self, preset: str) -> tuple[RunConfig, str, str]:
        """Returns the config, the topology and the name or file of a preset of the board."""
        assert self.board is not None
        at = [row.preset for row in self.board.rows].index(preset)
        return self._config, self._topology, self._presets[at]

    def cancel(self) -> None:
        """Cancels the current compilation; the next one follows."""
        if self.compiling:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def _keep(self, board: Board) -> Board:
        self.board = board
        return board

    def _order(self, rows: Sequence[Row]) -> list[int]:
        """Returns the indices of rows that are worth a compilation, the best by formula first."""
        index = {id(row): index for index, row in enumerate(rows)}
        known = [row for row in ranked(rows) if row.estimate or row.laid_out]
        return [index[id(row)] for row in known if self._is_named or not is_far_too_large(row.estimate)]

    def _with_answer(self, row: Row, answer: Answer) -> Row:
        if not answer.status:
            cost = msgspec.json.decode(answer.last_line, type=Cost)
            return msgspec.structs.replace(row, compiled=cost, problems=[*row.problems, *answer.messages])
        why = ["cancelled"] if self._cancelled else answer.problems
        return msgspec.structs.replace(row, problems=[*row.problems, *(f"not compiled: {line}" for line in why)])

    async def _ask(self, question: str, *about: str) -> Answer:
        self._process = EngineProcess(self._nice)
        if self._cancelled:
            self._process.kill()
        try:
            return await self._process.ask(question, self._config, *about)
        finally:
            self._process = None


def is_far_too_large(cost: Cost | None) -> bool:
    """Returns whether the peak, or what a trace is sure of, exceeds `MAX_OVERSIZE` times the capacity of a device."""
    if cost is None or cost.capacity_bytes is None:
        return False
    least = cost.argument_bytes if cost.basis == "trace" else cost.peak_bytes
    return least > MAX_OVERSIZE * cost.capacity_bytes
