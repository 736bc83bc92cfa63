"""Words for every exit status, and a wait for a process that ends by itself, late, or not while it is stopped."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from shardtui.engine.base import processes
from shardtui.engine.base.processes import (
    Clock,
    Deadline,
    cpu_time,
    exit_words,
    is_running,
    is_stopped,
    last_line,
    wait_for,
)

from ..processes import awaited


def test_every_exit_status_has_words() -> None:
    assert exit_words(0) == "its process ended with status 0"
    assert exit_words(None) == "its process has ended"
    named = [exit_words(-number).partition(",")[0].rpartition(" ")[2] for number in (9, 32, 34, 40, 64, 65)]
    assert named == ["SIGKILL", "32", "SIGRTMIN", "SIGRTMIN+6", "SIGRTMAX", "65"]
    assert len({exit_words(status) for status in range(-300, 300)}) == 600


@pytest.mark.parametrize(
    ("said", "stacks", "line"),
    [
        ("double free or corruption (out)", "Aborted", "double free or corruption (out)"),
        ("F1127 env.cc:93] failed\n*** Check failure stack trace: ***", "Aborted", "F1127 env.cc:93] failed"),
        ("loading", "Segmentation fault", "Fatal Python error: Segmentation fault"),
        ("", "Aborted", "Fatal Python error: Aborted"),
        ("one\ntwo\n\n", "", "two"),
        ("E0000 slow compile\n********************************", "", "E0000 slow compile"),
    ],
)
def test_the_last_line_before_a_crash_is_what_the_library_said(said: str, stacks: str, line: str) -> None:
    written = f"\nFatal Python error: {stacks}\n\nThread 0x1 (most recent call first):\n  File x" * bool(stacks)
    assert last_line(f"{said}{written}".splitlines()) == line


def test_the_state_of_a_process_is_known_whatever_its_name() -> None:
    named = "import ctypes; ctypes.CDLL(None).prctl(15, 'обучение'.encode()); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", named], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        assert is_running(process.pid)
        process.stdin.close()


@contextmanager
def sleeping() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_stopped_process_is_continued_once_then_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.2)
    with sleeping() as process:
        deadline = Deadline(1000)
        process.send_signal(signal.SIGSTOP)
        awaited(lambda: is_stopped(process.pid))
        assert deadline.problem([process.pid]) == ""
        awaited(lambda: not is_stopped(process.pid))
        process.send_signal(signal.SIGSTOP)
        awaited(lambda: deadline.problem([process.pid]))
        assert "stopped by a signal" in deadline.problem([process.pid])
        assert wait_for(process, 0.1, then=process.kill)
    assert process.returncode == -signal.SIGKILL
    with subprocess.Popen(["sleep", "0.01"]) as process:
        assert wait_for(process, 1000, then=process.kill)
    assert process.returncode == 0, "it ended in time"


def test_a_process_is_idle_until_it_computes() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.DEVNULL) as process:
        idle = Clock()
        process.send_signal(signal.SIGSTOP)
        awaited(lambda: idle.unchanged(cpu_time(process.pid)) >= 1.0)
        process.send_signal(signal.SIGCONT)
        awaited(lambda: idle.unchanged(cpu_time(process.pid)) < 1.0)
        process.kill()
