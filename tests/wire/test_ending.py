"""What a process records of its end reaches whoever started it; nothing else has a meaning."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
from shardtui.engine.wire.ending import Ending, RecordedProcess

RECORDS = """
import os, subprocess, sys
from shardtui.engine.wire.ending import VARIABLE, Ending, adopt_pipe, write_ending
adopt_pipe()
assert VARIABLE not in os.environ
if not os.fork():
    write_ending(Ending(kind="refused"))  # a child that user code forks
    os._exit(0)
os.wait()
write_ending(Ending(kind="failed", step=3, problems=["\\ud800" + "x" * 100_000] * 100, lost=["no sign of life"] * 9000))
write_ending(Ending(kind="finished"))
os._exit(77)
"""


def ended(command: Sequence[str]) -> tuple[Ending | None, int]:
    process = RecordedProcess(command, stderr=subprocess.PIPE)
    _, said = process.popen.communicate(timeout=60)
    assert not said
    return process.ending, process.popen.returncode


def test_the_first_record_of_the_process_itself_counts() -> None:
    found, status = ended([sys.executable, "-c", RECORDS])
    assert found and (found.kind, found.step, status) == ("failed", 3, 77)
    assert found.problems[0].startswith("\\ud800xxx"), "text that cannot be encoded is made readable"


@pytest.mark.parametrize("status", [0, 2])
def test_a_process_that_ends_without_a_record_has_none(status: int) -> None:
    assert ended([sys.executable, "-c", f"import os; os._exit({status})"]) == (None, status)
