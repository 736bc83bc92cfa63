"""Slots of compilations, which all plans on a machine share."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from shardtui.engine.base.machine import most_compilations
from shardtui.engine.planning.compile_slots import slot
from shardtui.engine.wire.run_directory import plan_cache

HOLD = """
from shardtui.engine.planning.compile_slots import slot
with slot(print):
    print("held", flush=True)
    input()
"""
LONG = 60.0


def hold() -> "subprocess.Popen[str]":
    """Starts a process that takes a slot, and waits until it has one."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_compilation_waits_for_those_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    holders = [hold() for _ in range(most_compilations())]
    begun, told = threading.Event(), list[bool]()

    def compile_something() -> None:
        with slot(told.append):
            begun.set()

    thread = threading.Thread(target=compile_something)
    thread.start()
    try:
        assert not begun.wait(1.0)
        assert told == [True]
        holders[-1].kill()
        assert begun.wait(LONG)
        assert told == [True, False]
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
        thread.join(LONG)


def test_where_no_slot_can_be_kept_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan_cache().mkdir(parents=True)
    (plan_cache() / "slots").touch()
    told: list[bool] = []
    with slot(told.append), slot(told.append):
        assert not told
