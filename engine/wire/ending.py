"""How an engine process ended: it tells whoever started it over a pipe, which needs no disk. An exit status means
nothing, because a library or user code can end the process with any."""

import contextlib
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..base.encoding import encode_json
from ..base.processes import exit_words
from ..base.untrusted import decode
from ..base.user_error import UserError

VARIABLE = "SHARDTUI_ENDING"
"""The environment variable with the number of the descriptor to write to."""
MAX_PROBLEMS, MAX_PROBLEM_CHARS = 10, 1000
"""A pipe holds 64 KiB, and whoever reads it may be stopped."""

Kind = Literal["finished", "stopped", "late", "refused", "failed", "lost", "killed", "stuck", "blocked"]
"""`finished`: all steps are done; `stopped`: by a command or a signal; `late`: the same, but it took too long and saved
nothing; `refused`: the request was invalid; `failed`: an error in this process; `lost`: another process was lost;
`killed`: it recorded nothing, whatever its exit status; `stuck`: it made no progress, and the others waited for it;
`blocked`: the machine did not let it begin again, because a disk is full or a lock is held."""
KINDS: tuple[Kind, ...] = ("refused", "late", "stuck", "failed", "killed", "blocked", "lost", "stopped", "finished")
"""The first of these that a process has ended with is how the engine ended."""


class Ending(Struct, frozen=True, kw_only=True):
    """How one process of an engine ended."""

    kind: Kind
    step: int = 0
    problems: list[str] = []
    lost: list[str] = []
    """Why other processes were lost."""
    fits: int | None = None
    """Number of processes on which a preset fits, if none fits on this attempt's; else null."""
    wrong: dict[int, list[int]] = {}
    """Ids of devices that do not hold what their replicas hold, by process index: the run goes on without them."""

    @property
    def is_orderly(self) -> bool:
        return self.kind in ("finished", "stopped")

    @property
    def fault(self) -> tuple[str, ...]:
        """The part that endings share if the same fault repeats: without the line and seconds of a stuck one."""
        return (self.kind,) if self.kind == "stuck" else (self.kind, *self.problems)

    @property
    def why(self) -> str:
        return "; ".join(self.problems + self.lost) or self.kind


def unrecorded(status: int) -> Ending:
    """Returns the ending of a process that recorded none. jax aborts one whose process 0 is gone: that was first."""
    return Ending(kind="lost" if status == -signal.SIGABRT else "killed", problems=[exit_words(status)])


def worst(endings: Mapping[int, Ending]) -> tuple[int, Ending]:
    return min(endings.items(), key=lambda item: (KINDS.index(item[1].kind), item[0]))


class RecordedProcess:
    """A process that may record how it ended."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        """`how`: arguments of `Popen`. Raises OSError."""
        self._ours, theirs = os.pipe()
        os.set_blocking(self._ours, False)
        weakref.finalize(self, os.close, self._ours)
        try:
            environment = os.environ | {VARIABLE: str(theirs)}
            self.popen: subprocess.Popen[bytes] = subprocess.Popen[bytes](
                command, pass_fds=[theirs], env=environment, **how
            )
        finally:
            os.close(theirs)
        self._ending: Ending | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def ending(self) -> Ending | None:
        """What it has recorded; None if it has not."""
        with contextlib.suppress(OSError, UserError):
            if self._ending is None and (record := os.read(self._ours, 1 << 20)):
                self._ending = decode(record, Ending, "the ending")
        return self._ending


_pipe: list[int] = []
"""The descriptor of this process's pipe, until it has written there."""


def adopt_pipe() -> None:
    """Takes the pipe from the environment, so that no process which this one starts can write to it."""
    with contextlib.suppress(ValueError, OSError):
        theirs = int(os.environ.pop(VARIABLE, ""))
        os.set_inheritable(theirs, False)
        os.set_blocking(theirs, False)
        _pipe.append(theirs)
        os.register_at_fork(after_in_child=_pipe.clear)


def write_ending(ending: Ending) -> None:
    """Records how this process ends, if somebody wants to know. The first record counts: others follow from it."""
    with contextlib.suppress(IndexError, OSError):
        os.write(_pipe.pop(), encode_json(_short(ending)))


def _short(ending: Ending) -> Ending:
    problems, lost = (
        [text[:MAX_PROBLEM_CHARS] for text in texts[:MAX_PROBLEMS]] for texts in (ending.problems, ending.lost)
    )
    return msgspec.structs.replace(ending, problems=problems, lost=lost)
