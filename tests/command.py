"""Runs `shardtui` in this process."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from shardtui.tui.cli.main import main


def answered(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command, whose engines are processes of their own. Returns its exit code and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([*arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
