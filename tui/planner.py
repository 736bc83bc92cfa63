"""What the engine says of a slice: every preset by formula at once, then each compiled in a process of its own."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import msgspec

from ..engine import protocol
from ..engine.board import Board, Cost, Row, ranked
from ..engine.config import Invalid, RunConfig


class Planner:
    def __init__(self, config: RunConfig, topology: str, presets: Sequence[str]) -> None:
        self._config = config
        self._topology = topology
        self._presets = presets
        self._process: asyncio.subprocess.Process | None = None
        self._cancelled = False
        self.compiling: str | None = None
        """The preset that is with the compiler."""

    async def boards(self) -> AsyncIterator[Board]:
        """One of estimates, then another one after each compilation. Raises Invalid where there is none."""
        status, answer, said = await self._ask("plan", self._topology, *self._presets)
        if status:
            raise Invalid(*(line.removeprefix("shardtui: ") for line in said or [_ended(status)]))
        board = msgspec.json.decode(answer, type=Board)
        yield board
        for row in ranked(board.rows):
            if row.estimate is not None:
                self.compiling = row.preset
                compiled = await self._compiled(row)
                rows = [compiled if other.preset == row.preset else other for other in board.rows]
                board = msgspec.structs.replace(board, rows=rows)
                self.compiling = None
                yield board

    def cancel(self) -> None:
        """The compilation that goes on; the next one follows."""
        if self._process is not None:
            self._cancelled = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _compiled(self, row: Row) -> Row:
        status, answer, said = await self._ask("compile", self._topology, row.preset)
        if not status:
            return msgspec.structs.replace(row, compiled=msgspec.json.decode(answer, type=Cost))
        why = ["cancelled"] if self._cancelled else said[-1:] or [_ended(status)]
        self._cancelled = False
        return msgspec.structs.replace(row, problems=[f"not compiled: {line}" for line in why])

    async def _ask(self, question: str, *about: str) -> tuple[int, bytes, list[str]]:
        """Exit status, answer, and what it said besides."""
        config = protocol.encode_json(self._config).decode()
        command = [sys.executable, "-P", "-m", "shardtui.engine", question, config, *about]
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=pipe)
        try:
            answer, said = await self._process.communicate()
            return self._process.returncode or 0, answer, said.decode(errors="replace").splitlines()
        finally:  # nobody waits any more
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def _ended(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status} and said nothing"
