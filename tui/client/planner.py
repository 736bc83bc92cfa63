"""Plans a slice: the engine estimates every preset by formula at once, then compiles each in a process of its own."""

import asyncio
import contextlib
import os
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
from .engine_command import engine_command
from .exit_reason import exit_status_text, last_line

MAX_OVERSIZE = 2.0
"""Presets that need more than this many times the capacity by formula are compiled only if they are named."""
MAX_PROBLEM_CHARS = 400
"""Compilers quote whole programs in their errors."""
MESSAGE_PREFIX = "shardtui: "
"""Begins each line that the engine prints for people."""


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


@dataclass(frozen=True)
class Answer:
    """The output of an engine process."""

    status: int
    """Exit status; negative for a signal."""
    output: bytes
    """Its stdout."""
    stderr: list[str]
    """Lines of its stderr."""

    @property
    def last_line(self) -> bytes:
        """The last line of stdout, which is the answer: libraries may print before it."""
        return self.output.rstrip().rpartition(b"\n")[2]

    @property
    def messages(self) -> list[str]:
        """What the engine itself prints for people, without its prefix."""
        own = [line.removeprefix(MESSAGE_PREFIX) for line in self.stderr if line.startswith(MESSAGE_PREFIX)]
        return [line[:MAX_PROBLEM_CHARS] for line in own]

    @property
    def problems(self) -> list[str]:
        """Why there is no answer."""
        if self.messages:
            return self.messages
        return [f"{exit_status_text(self.status)}: {last_line(self.stderr)[:MAX_PROBLEM_CHARS] or 'no output'}"]


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


class NoAnswer(Invalid):
    """The engine process failed, whatever the request was."""


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
    ) -> None:
        """Prepares a board; no process is started yet.

        `presets`: names or files, which are compiled however large they are; if there are none, the usual ones are
        planned. `searches`: the best other meshes of the slice are planned, too. `nice`: added to the niceness of the
        compiler's process.
        """
        self._config = config
        self._topology = topology
        usual, problems = usual_presets(config)
        self._presets = list(presets or usual)
        self._is_named = bool(presets)
        self._searches = searches
        self._nice = nice
        self.compiles = compiles and tpu_compiler.is_installed()
        """Whether the compiler follows the estimates."""
        self._process: Process | None = None
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
                answer = await self._ask("compile", self._topology, self._presets[index])
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
        if answer.status:
            raise Invalid(*answer.problems) if answer.messages else NoAnswer(*answer.problems)
        return msgspec.json.decode(answer.last_line, type=Board)

    def cancel(self) -> None:
        """Cancels the current compilation; the next one follows."""
        if self.compiling:
            self._cancelled = True
            if self._process is not None:
                _kill(self._process)

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
        command = engine_command(question, self._config, *about)
        try:
            with _liveness_pipe() as stdin, TemporaryFile() as output, TemporaryFile() as stderr:
                # In a session of its own: Ctrl-C at the terminal must not reach it.
                # Files, not pipes: a process that the user's model has forked would keep those open.
                self._process = await create_subprocess_exec(
                    *command, stdin=stdin, stdout=output, stderr=stderr, start_new_session=True
                )
                if self._cancelled:
                    _kill(self._process)
                _set_niceness(self._process, self._nice)
                status = await _exit_status(self._process)
                return Answer(status, _contents(output), _contents(stderr).decode(errors="replace").splitlines())
        except OSError as error:
            return Answer(1, b"", [f"{MESSAGE_PREFIX}the engine cannot be started: {error.strerror}"])
        finally:
            self._process = None


def is_far_too_large(cost: Cost | None) -> bool:
    """Returns whether the peak exceeds `MAX_OVERSIZE` times the capacity of a device."""
    return cost is not None and cost.capacity_bytes is not None and cost.peak_bytes > MAX_OVERSIZE * cost.capacity_bytes


@contextlib.contextmanager
def _liveness_pipe() -> Generator[int]:
    """Yields the end of a pipe for an engine's stdin, which closes when this process ends, however it ends."""
    engine_end, our_end = os.pipe()
    try:
        yield engine_end
    finally:
        os.close(engine_end)
        os.close(our_end)


async def _exit_status(process: Process) -> int:
    """Returns the process's status. Kills the process if the caller is cancelled or fails."""
    try:
        return await process.wait()
    except BaseException as reason:
        _kill(process)
        if isinstance(reason, asyncio.CancelledError):
            await process.wait()
        raise


def _contents(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _set_niceness(process: Process, nice: int) -> None:
    """Call this before the process starts threads, which inherit its niceness."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, os.nice(0) + nice)
