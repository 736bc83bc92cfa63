"""A world that fails round the supervisors of a run: they must report it once, answer signals, and go on once it works
again, while their engines train."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from ..hanging_model import HangingModel
from ..processes import awaited
from ..simulated_hosts import Hosts
from .launched import Event, Launched, shardtui
from .row import Row, tried

LIMIT = 240.0
ANSWER_SECONDS = 20.0
"""Longest time from SIGTERM to the end of a run, with a save."""
FAILING_SECONDS = 15.0
"""For how long storage fails: longer than without beats a host is lost."""
NO_LINKS = """
import os

def link(*arguments, **options):
    raise PermissionError(1, "Operation not permitted")

os.link = link
"""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each fault."""
    for fault in (no_links, storage_gone, runtime_open):
        yield tried(fault.__doc__, times, partial(_injected, fault))


def _injected(fault: Callable[[Path], str]) -> str:
    return fault(Path(tempfile.mkdtemp(prefix="world-", dir=Path.cwd())))


def no_links(folder: Path) -> str:
    """hard links refused on the shared folder"""
    (folder / "sitecustomize.py").write_text(NO_LINKS)
    with _hosts(folder, PYTHONPATH=str(folder)) as hosts:
        return f"trained; ended {_ended(hosts):.1f} s after SIGTERM"


def storage_gone(folder: Path) -> str:
    """the shared folder away for 15 s, then back"""
    with _hosts(folder) as hosts:
        shared = folder / "shared/big/supervisors"
        shared.rename(folder / "away")
        time.sleep(FAILING_SECONDS)
        (folder / "away").rename(shared)
        before = _steps(hosts.history(0))
        _until(lambda: _steps(hosts.history(0)) > before, hosts, "another step")
        time.sleep(FAILING_SECONDS)
        starts = [event for event in hosts.history(0) if event["type"] == "EngineStarted"]
        assert len(starts) == 1, f"{len(starts)} attempts: {hosts.said(0)[-500:]}"
        said = [hosts.said(rank).count("other hosts do not see this one") for rank in (0, 1)]
        assert said == [1, 1], f"reported {said} times"
        return f"reported once, no attempt lost; ended {_ended(hosts):.1f} s after SIGTERM"


def runtime_open(folder: Path) -> str:
    """the directory of the sockets opened to other users, SIGKILL to the engine, then mended"""
    runtime = Path(os.environ["SHARDTUI_RUNTIME_DIR"])
    model = HangingModel(folder / "model")
    with Launched(folder.name, *model.options, "--supervise", "--checkpoint-every=100") as run:
        run.until("CheckpointSaved")
        log = run.directory.log
        runtime.chmod(0o755)
        try:
            killed = run.directory.holder()
            assert killed
            os.kill(killed.pid, signal.SIGKILL)
            awaited(lambda: "other users can enter it" in log.read_text(), "a report")
            time.sleep(10)
            told = log.read_text().count("other users can enter it")
            assert told == 1, f"reported {told} times"
        finally:
            runtime.chmod(0o700)
        awaited(lambda: (found := run.directory.holder()) and found != killed, "another engine")
        began = time.monotonic()
        stopped = shardtui("stop", run.name)
        code = run.process.wait(LIMIT)
    assert (stopped.returncode, code) == (0, 0), f"{stopped.stdout}{stopped.stderr}, {code}"
    return f"reported once, resumed by itself; ended {time.monotonic() - began:.1f} s after `stop`"


@contextmanager
def _hosts(folder: Path, **environment: str) -> Iterator[Hosts]:
    hosts = Hosts(folder, 2, "--checkpoint-every=100", "--steps=10000000")
    try:
        with patch.dict(os.environ, environment):
            for rank in (0, 1):
                hosts.start(rank)
        _until(lambda: _steps(hosts.shared_history()), hosts, "a step")
        yield hosts
    finally:
        for supervisor in hosts.supervisors.values():
            supervisor.kill()
            supervisor.wait()


def _ended(hosts: Hosts) -> float:
    """Returns the seconds from SIGTERM to the end of all supervisors."""
    began = time.monotonic()
    for supervisor in hosts.supervisors.values():
        supervisor.send_signal(signal.SIGTERM)
    codes = [supervisor.wait(LIMIT) for supervisor in hosts.supervisors.values()]
    seconds = time.monotonic() - began
    assert codes == [0, 0], f"exit codes {codes}: {hosts.said(0)[-500:]}"
    assert seconds < ANSWER_SECONDS, f"ended after {seconds:.0f} s"
    return seconds


def _steps(events: list[Event]) -> int:
    return max((event["step"] for event in events if event["type"] == "StepsDone"), default=0)


def _until(holds: Callable[[], object], hosts: Hosts, what: str) -> None:
    awaited(holds, lambda: f"{what}: {hosts.said(0)[-500:]}")
