"""A compiler that ends, or stands still, while a switch is prepared: the run goes on under the old preset, and the same
switch succeeds later."""

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from shardtui.engine.base.processes import children
from shardtui.engine.program.compiler_process import QUESTION
from shardtui.engine.wire.commands import SwitchPreset

from ..conftest import SETTINGS
from ..processes import awaited
from .launched import Launched, limit_memory, printed
from .row import Row, tried

LIMIT = 120.0
"""Seconds until a compiler has to have been started."""
FAULTS: dict[str, tuple[signal.Signals | Callable[[int], object], str]] = {
    "abort of the compiler": (signal.SIGABRT, "the compiler's process was ended by SIGABRT"),
    "the compiler stands still": (signal.SIGSTOP, "stopped by a signal"),
    "the compiler's memory is limited": (partial(limit_memory, more=2**24), "out of memory on this machine|LLVM ERROR"),
}
"""What is sent or done to the compiler's process, and what the failed switch says."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each fault."""
    for injected, (fault, words) in FAULTS.items():
        yield tried(injected, times, partial(_fail_a_switch, fault, words))


def _fail_a_switch(fault: signal.Signals | Callable[[int], object], words: str) -> str:
    cache = tempfile.mkdtemp(prefix="compilers-", dir=Path.cwd())
    with Launched(Path(cache).name, *SETTINGS, XDG_CACHE_HOME=cache) as run:
        run.until("StepDone")
        awaited(lambda: _compilers(run.engine), "a compiler", LIMIT)  # of what a save needs
        awaited(lambda: not _compilers(run.engine), "the end of the compiler", LIMIT)
        run.send(SwitchPreset("fsdp"))
        while run.until("PresetCompiling")["phase"] != "compile":
            pass
        compiler = awaited(lambda: _compilers(run.engine), "a compiler of the switch", LIMIT)[0]
        os.kill(compiler, fault) if isinstance(fault, signal.Signals) else fault(compiler)
        failed = run.until("SwitchFailed", "Switched", "EngineLost")
        assert failed["type"] == "SwitchFailed", failed
        assert re.search(words, failed["problems"][0]), failed["problems"]
        assert failed["preset"] == "dp", failed
        assert run.until("StepDone")["step"] > failed["step"]
        run.send(SwitchPreset("fsdp"))
        assert run.until("Switched", "SwitchFailed", "EngineLost")["type"] == "Switched"
        run.until("StepDone")
        result = run.stop()
    steps = [event["step"] for event in printed(result, "StepDone")]
    assert steps == list(range(1, len(steps) + 1)), "steps are missing"
    assert "Traceback" not in run.directory.log.read_text(), "a traceback in engine.log"
    assert f"switch to fsdp failed: {failed['problems'][0]}" in result.stderr, result.stderr
    return "the switch failed with these words, no step was lost, the next one succeeded"


def _compilers(engine: int) -> list[int]:
    """Returns the pids of the engine's compilers that have begun to work."""
    found: list[int] = []
    for pid in children(engine):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if QUESTION.encode() in command and len([*Path(f"/proc/{pid}/task").iterdir()]) > 4:
                found.append(pid)
    return found
