"""An engine process that answers one question of the UI's, and ends with the UI."""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from msgspec import Struct

from ...engine.base.advice import last_words
from ...engine.base.encoding import encode_json
from ...engine.base.processes import KILL_SECONDS, exit_words
from ...engine.base.regular_file import open_regular
from ...engine.base.user_error import UserError
from ...engine.wire.engine_command import Turn, engine_command

MAX_PROBLEM_CHARS = 400
"""Compilers quote whole programs in their errors."""
NICENESS = 10
"""Niceness of a process beside training, which gets the cores first."""
MESSAGE_PREFIX = "shardtui: "
"""Begins each line that the engine prints for people."""
WAITING = encode_json(Turn(is_waiting=True))
"""The last line so far of a process that waits for the compilations of other plans."""


class NoAnswer(UserError):
    """The engine process failed, whatever the request was."""


class Answer(Struct, frozen=True):
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
        own = [line.removeprefix(MESSAGE_PREFIX) for line in self.stderr if line.startswith(MESSAGE_PREFIX)]
        return [line[:MAX_PROBLEM_CHARS] for line in own]

    @property
    def problems(self) -> list[str]:
        if self.messages:
            return self.messages
        return [f"{exit_words(self.status)}: {last_words(self.stderr) or 'no output'}"]

    def checked(self) -> "Answer":
        """Returns this answer. Raises UserError if the engine refused the request, and NoAnswer if it failed."""
        if self.status:
            raise UserError(*self.problems) if self.messages else NoAnswer(*self.problems)
        return self


class EngineProcess:
    """One process. If the caller of `ask` is cancelled, the process is killed."""

    def __init__(self, nice: int = 0) -> None:
        """`nice`: added to the niceness of the process."""
        self._nice = nice
        self._process: Process | None = None
        self._is_killed = False
        self._output: BinaryIO | None = None

    async def ask(self, question: str, subject: Struct, *about: str) -> Answer:
        """Starts the process and returns its answer. A process that cannot be started is an answer with a problem."""
        command = engine_command(question, subject, *about)
        try:
            with _liveness_pipe() as stdin, TemporaryFile() as output, TemporaryFile() as stderr:
                self._output = output
                # In a session of its own: Ctrl-C at the terminal must not reach it.
                # Files, not pipes: a process that the user's model has forked would keep those open.
                self._process = await create_subprocess_exec(
                    *command, stdin=stdin, stdout=output, stderr=stderr, start_new_session=True
                )
                if self._is_killed:
                    _kill(self._process)
                _set_niceness(self._process, self._nice)
                status = await _exit_status(self._process)
                return Answer(status, _contents(output), _contents(stderr).decode(errors="replace").splitlines())
        except OSError as error:
            return Answer(1, b"", [f"{MESSAGE_PREFIX}the engine cannot be started: {error.strerror}"])

    @property
    def is_waiting(self) -> bool:
        """Whether it waits until other plans on this machine have compiled."""
        return self.last_line == WAITING

    @property
    def last_line(self) -> bytes:
        """The last whole line of its stdout so far; empty without one, and once it has ended."""
        if self._output is None or self._output.closed:
            return b""
        file = self._output.fileno()
        found = os.pread(file, os.fstat(file).st_size, 0)  # seeking would move its end, too
        return found.rpartition(b"\n")[0].rpartition(b"\n")[2]

    def kill(self) -> None:
        """Kills the process, also if it is still to be started."""
        self._is_killed = True
        if self._process is not None:
            _kill(self._process)


@contextlib.contextmanager
def _liveness_pipe() -> Generator[int]:
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
            with contextlib.suppress(TimeoutError):  # it waits in a system call on a device or storage that hangs
                await asyncio.wait_for(process.wait(), KILL_SECONDS)
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


MAX_LOG_BYTES = 1024 * 1024
"""Bytes at the end of a log that are read."""


def log_lines(log: Path, begin: int) -> list[str]:
    """Returns the last lines of a log after its first `begin` bytes; none if it cannot be read."""
    try:
        with open_regular(log) as file:
            file.seek(max(begin, log.stat().st_size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
