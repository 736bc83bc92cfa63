"""How an engine process ended, and the last line of its log."""

import signal
from pathlib import Path

from ...engine.base.processes import exit_words, last_line
from ...engine.base.regular_file import open_regular

MAX_LOG_BYTES = 1024 * 1024
"""Bytes at the end of a log that are searched."""


def exit_reason(status: int | None) -> str:
    """Returns how a process ended that printed no reason."""
    if status is None or status >= 0:
        return f"{exit_words(status)} without a message"
    hint = ", as the system does when memory runs out" if status == -signal.SIGKILL else ""
    return f"{exit_words(status)}{hint}"


def last_log_line(log: Path, begin: int) -> str:
    """Returns the last line of a log after its first `begin` bytes, as `last_line` does; empty if it cannot be read."""
    try:
        with open_regular(log) as file:
            file.seek(max(begin, log.stat().st_size - MAX_LOG_BYTES))
            return last_line(file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines())
    except OSError:
        return ""
