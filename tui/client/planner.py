"""What the engine says of a slice: every preset by formula at once, then each compiled in a process of its own."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import BinaryIO

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.planning import tpu_compiler
from ...engine.planning.ranking import Board, Cost, Row, ranked
from ...engine.spec.config import RunConfig
from ...engine.spec.preset_files import is_pitfall
from ...engine.spec.preset_reader import load_preset, load_presets
from ...engine.wire import framing
from .last_words import FATAL

HOPELESS = 2.0
"""What needs so many times the capacity by formula is not compiled unless it was asked for by name."""
LONGEST_PROBLEM = 400
"""Characters: compilers quote whole programs."""
OURS = "shardtui: "
"""How the engine begins a line for people."""


@dataclass(frozen=True)
class Compiling:
    """A preset that is with the compiler."""

    preset: str
    number: int
    count: int
    began: float
    """As `time.monotonic` has it."""


@dataclass(frozen=True)
class Answer:
    """What an engine process left."""

    status: int
    output: bytes
    said: list[str]
    """Lines of its stderr."""

    @property
    def last_line(self) -> bytes:
        """Libraries may have printed before it."""
        return self.output.rstrip().rpartition(b"\n")[2]

    @property
    def told(self) -> list[str]:
        """What the engine itself says to people."""
        return [line.removeprefix(OURS)[:LONGEST_PROBLEM] for line in self.said if line.startswith(OURS)]

    @property
    def problems(self) -> list[str]:
        """Why there is no answer. Libraries talk much: the line with which one ended the process, else the last."""
        if self.told:
            return self.told
        last = next(filter(FATAL.match, self.said), self.said[-1] if self.said else "nothing")
        return [f"{_ended(self.status)} and said: {last.strip()[:LONGEST_PROBLEM]}"]


def usual_presets(config: RunConfig) -> tuple[list[str], list[str]]:
    """What is planned where no preset is named: all but the pitfalls, and the run's own, by name or file. And what is
    wrong with files that cannot be read."""
    presets, problems = load_presets()
    found = [preset.reference for preset in presets if not is_pitfall(preset.name)]
    try:
        return list(dict.fromkeys([*found, load_preset(config.preset).reference])), problems
    except Invalid as error:
        return found, [*problems, *error.problems]


class NoAnswer(Invalid):
    """The engine failed, whatever it was asked."""


class Planner:
    """Asks for one board. Only one process runs at a time, and none between two boards."""

    def __init__(
        self,
        config: RunConfig,
        topology: str,
        presets: Sequence[str],
        compiles: bool,
        searches: bool = False,
        nice: int = 0,
    ) -> None:
        """`presets`: by name or by file, each of which is compiled however large it is; where there is none, the usual
        ones are planned. `searches`: so are the best other meshes of the slice. `nice`: how much of the processor the
        compiler leaves to others, as the system counts it."""
        self._config = config
        self._topology = topology
        usual, problems = usual_presets(config)
        self._presets = list(presets or usual)
        self._named = bool(presets)
        self._searches = searches
        self._nice = nice
        self._compiles = compiles and tpu_compiler.is_installed()
        self._process: Process | None = None
        self._cancelled = False
        self.unreadable: list[str] = [] if presets else problems
        """What is wrong with preset files that cannot be read."""
        self.board: Board | None = None
        """What is known so far."""
        self.compiling: Compiling | None = None

    async def boards(self) -> AsyncIterator[Board]:
        """One of estimates, then one when a compilation begins and one when it has ended. Raises Invalid where the
        question is wrong, and NoAnswer."""
        board = self._known(await self.estimates())
        yield board
        if self._searches:
            board = self._known(await self._with_found(board))
            yield board
        order = self._order(board.rows) if self._compiles else []
        for number, index in enumerate(order, 1):
            row = board.rows[index]
            self._cancelled, self.compiling = False, Compiling(row.preset, number, len(order), time.monotonic())
            try:
                yield board
                answer = await self._ask("compile", self._topology, self._presets[index])
            finally:
                self.compiling = None
            rows = [*board.rows[:index], self._with(row, answer), *board.rows[index + 1 :]]
            board = self._known(msgspec.structs.replace(board, rows=rows))
            yield board
            if any(line.startswith("--topology") for line in answer.told):
                return  # the compiler knows no such slice: it has nothing to say of other presets

    async def estimates(self) -> Board:
        """Raises as `boards` does."""
        return await self._board("plan", *self._presets)

    async def _with_found(self, board: Board) -> Board:
        """With the best meshes of the slice that no preset has: a mesh is the name of its preset."""
        found = await self._board("search")
        rows = [row for row in found.rows if row.preset not in self._presets]
        self._presets += [row.preset for row in rows]
        return msgspec.structs.replace(board, rows=[*board.rows, *rows])

    async def _board(self, question: str, *about: str) -> Board:
        answer = await self._ask(question, self._topology, *about)
        if answer.status:
            raise Invalid(*answer.problems) if answer.told else NoAnswer(*answer.problems)
        return msgspec.json.decode(answer.last_line, type=Board)

    def cancel(self) -> None:
        """The compilation that goes on; the next one follows."""
        if self.compiling:
            self._cancelled = True
            if self._process is not None:
                _kill(self._process)

    def _known(self, board: Board) -> Board:
        self.board = board
        return board

    def _order(self, rows: Sequence[Row]) -> list[int]:
        """Indices of what is worth a compilation, what looks best by formula first."""
        index = {id(row): index for index, row in enumerate(rows)}
        known = [row for row in ranked(rows) if row.estimate or row.laid_out]
        return [index[id(row)] for row in known if self._named or not is_hopeless(row.estimate)]

    def _with(self, row: Row, answer: Answer) -> Row:
        if not answer.status:
            cost = msgspec.json.decode(answer.last_line, type=Cost)
            return msgspec.structs.replace(row, compiled=cost, problems=[*row.problems, *answer.told])
        why = ["cancelled"] if self._cancelled else answer.problems
        return msgspec.structs.replace(row, problems=[*row.problems, *(f"not compiled: {line}" for line in why)])

    async def _ask(self, question: str, *about: str) -> Answer:
        config = framing.encode_json(self._config).decode()
        command = [sys.executable, "-P", "-m", "shardtui.engine", question, config, *about]
        try:
            with _tether() as end, TemporaryFile() as output, TemporaryFile() as said:
                # In a session of its own: Ctrl-C at the terminal is for us.
                # Files, not pipes: those stay open in a process that the user's model has forked.
                self._process = await create_subprocess_exec(
                    *command, stdin=end, stdout=output, stderr=said, start_new_session=True
                )
                if self._cancelled:
                    _kill(self._process)
                _be_nice(self._process, self._nice)
                status = await _waited_for(self._process)
                return Answer(status, _text(output), _text(said).decode(errors="replace").splitlines())
        except OSError as error:
            return Answer(1, b"", [f"{OURS}the engine cannot be started: {error.strerror}"])
        finally:
            self._process = None


def is_hopeless(cost: Cost | None) -> bool:
    return cost is not None and cost.capacity_bytes is not None and cost.peak_bytes > HOPELESS * cost.capacity_bytes


@contextlib.contextmanager
def _tether() -> Generator[int]:
    """The end of a pipe that an engine process takes as its stdin. It sees the other end closed when we are gone,
    however we ended."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


async def _waited_for(process: Process) -> int:
    """Its status. It is killed where nobody waits any more."""
    try:
        return await process.wait()
    except BaseException as reason:
        _kill(process)
        if isinstance(reason, asyncio.CancelledError):
            await process.wait()
        raise


def _text(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _be_nice(process: Process, nice: int) -> None:
    """Before it has threads of its own, which are then as nice."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, os.nice(0) + nice)


def _ended(status: int) -> str:
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"
