"""Processes in reserve. Real ones, which import the engine."""

import subprocess
import sys
from pathlib import Path

from shardtui.engine.supervision.spares import Spares
from shardtui.engine.wire.engine_command import engine_command

from .test_hosts import wait_for

ABANDONED = """
import os
from shardtui.engine.supervision.spares import Spares

Spares().fill(2)
os._exit(0)
"""


def test_a_process_in_reserve_runs_a_command_and_writes_its_log(tmp_path: Path) -> None:
    spares, log = Spares(), tmp_path / "log"
    command = engine_command("verify", str(tmp_path / "nothing"))
    assert spares.take(command, log) is None
    spares = Spares()
    spares.fill(1)
    taken: list[subprocess.Popen[bytes]] = []
    wait_for(lambda: taken.extend(filter(None, [spares.take(command, log)])) or taken)
    assert "reserve" in taken[0].args  # type: ignore[operator]
    assert taken[0].wait(timeout=60) == 2
    assert "nothing" in log.read_text()
    assert spares.take(command, log) is None, "it was the only one"


def test_processes_in_reserve_end_with_their_supervisor() -> None:
    """They inherit its output, which ends once all who have it have ended."""
    subprocess.run([sys.executable, "-c", ABANDONED], capture_output=True, timeout=120, check=True)
