"""A compiler that ends, or stands still, while a switch is prepared: the run goes on under the old preset, and the same
switch succeeds later."""

import json
import os
import re
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from shardtui.engine.base.processes import children
from shardtui.engine.program.compiler_process import QUESTION
from shardtui.engine.wire.commands import SwitchPreset

from ..processes import awaited
from .messages import Living
from .row import Row, tried

LIMIT = 120.0
"""Seconds until a compiler has to have been started."""
ROOM = 2**24
"""Bytes that a compiler with a memory limit may take in addition."""


def _limit(pid: int) -> None:
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + ROOM, used + ROOM))


FAULTS: dict[str, tuple[Callable[[int], object], str]] = {
    "abort of the compiler": (lambda pid: os.kill(pid, signal.SIGABRT), "the compiler's process was ended by SIGABRT"),
    "SIGSEGV in the compiler": (
        lambda pid: os.kill(pid, signal.SIGSEGV),
        "the compiler's process was ended by SIGSEGV",
    ),
    "SIGKILL to the compiler": (
        lambda pid: os.kill(pid, signal.SIGKILL),
        "the compiler's process was ended by SIGKILL",
    ),
    "the compiler stands still": (lambda pid: os.kill(pid, signal.SIGSTOP), "stopped by a signal"),
    "the compiler's memory is limited": (_limit, "out of memory on this machine|LLVM ERROR"),
}
"""What is done to the compiler's process, and what the failed switch says."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each fault."""
    for injected, (inject, words) in FAULTS.items():
        yield tried(injected, times, partial(_injected, inject, words))


def _injected(inject: Callable[[int], object], words: str) -> str:
    with tempfile.TemporaryDirectory(prefix="shardtui-compilers-") as folder:
        _fail_a_switch(Path(folder), inject, words)
    return "the switch failed with these words, no step was lost, the next one succeeded"


def _fail_a_switch(folder: Path, inject: Callable[[int], object], words: str) -> None:
    living = Living(folder, XDG_CACHE_HOME=str(folder))
    living.until("StepDone")
    awaited(lambda: _compilers(living.engine), "a compiler", LIMIT)  # of what a save needs
    awaited(lambda: not _compilers(living.engine), "the end of the compiler", LIMIT)
    living.send(SwitchPreset("fsdp"))
    while living.until("PresetCompiling")["phase"] != "compile":
        pass
    inject(awaited(lambda: _compilers(living.engine), "a compiler of the switch", LIMIT)[0])
    failed = living.until("SwitchFailed", "Switched", "EngineLost")
    assert failed["type"] == "SwitchFailed", f"{failed['type']}: {failed}"
    assert re.search(words, failed["problems"][0]), failed["problems"]
    assert failed["preset"] == "dp", failed
    assert living.until("StepDone")["step"] > failed["step"]
    living.send(SwitchPreset("fsdp"))
    assert living.until("Switched", "SwitchFailed", "EngineLost")["type"] == "Switched"
    living.until("StepDone")
    result = living.stop()
    made = [json.loads(line) for line in result.stdout.splitlines()]
    steps = [event["step"] for event in made if event["type"] == "StepDone"]
    assert steps == list(range(1, len(steps) + 1)), "steps are missing"
    assert "Traceback" not in living.directory.log.read_text(), "a traceback in engine.log"
    assert f"switch to fsdp failed: {failed['problems'][0]}" in result.stderr, result.stderr


def _compilers(engine: int) -> list[int]:
    """Returns the pids of the engine's compilers that have begun to work."""
    found: list[int] = []
    for pid in children(engine):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if QUESTION.encode() in command and len([*Path(f"/proc/{pid}/task").iterdir()]) > 4:
                found.append(pid)
    return found
