"""What is left of an engine process that has ended: how it ended, and what stands last in its log."""

import re
import signal
from pathlib import Path

from ...engine.base.regular_file import open_regular

FATAL = re.compile(r"F\d{4} |LLVM ERROR|terminate called|Fatal Python error")
LONGEST_LOG = 1024 * 1024
"""Bytes at its end that are looked through."""


def exit_reason(status: int) -> str:
    if status < 0:
        hint = ", which the system also does when memory runs out" if status == -signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-status).name}{hint}"
    return f"its process ended with status {status} and said nothing"


def last_words(log: Path, begin: int) -> str:
    """The line that says why a library ended the process, which stack traces follow; else the last one."""
    try:
        with open_regular(log) as file:
            file.seek(max(begin, log.stat().st_size - LONGEST_LOG))
            lines = file.read(LONGEST_LOG).decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return next((line for line in said if FATAL.match(line)), said[-1] if said else "")
