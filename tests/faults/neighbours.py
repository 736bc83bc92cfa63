"""Attacks by another user of the machine: none of their commands is obeyed, and they read only what docs/security.md
lists. tests/distributed/test_neighbours.py has the attacks over TCP."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire.commands import Stop

from ..conftest import SETTINGS
from ..distributed.test_neighbours import listening_of
from .launched import Launched
from .row import NotRun, Row, tried

NOBODY = 65534
Attack = Callable[[Launched, list[int]], str]
"""An attack on a run, whose processes have these pids. Returns what was seen."""


def run(times: int) -> Iterator[Row]:
    """Runs each attack once, whatever `times`."""
    for attack in (at_socket, at_coordinator, at_files, at_collectives):
        yield tried(attack.__doc__, 1, partial(_attacked, attack))


def _attacked(attack: Attack) -> str:
    """Runs an attack as another user, against the two processes of `train --processes 2`."""
    if os.getuid():
        raise NotRun("becoming another user needs root")
    with Launched(attack.__name__, *SETTINGS, "--processes=2") as run:
        hosts = run.until("EngineReady")["hosts"]
        run.until("StepDone")
        note = attack(run, [host["pid"] for host in hosts])
        run.more("StepDone", 3, seconds=60)
        run.process.terminate()
        result = run.end(seconds=90)
    assert result.returncode == 0, result.stderr
    return note


def _nobody(code: str, *arguments: object) -> str:
    """Runs a script as another user and returns its output."""
    command = [sys.executable, "-c", f"import os, sys, socket\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n{code}"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


CONNECT = """
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
    connection.sendall(bytes.fromhex(sys.argv[2]))
    connection.settimeout(2)
    print("heard", connection.recv(1))
except OSError as error:
    print(type(error).__name__)
"""


def at_socket(run: Launched, pids: list[int]) -> str:
    """another user at the engine's socket"""
    path, stop = run.directory.socket, framing.frame(Stop()).hex()
    refused = _nobody(CONNECT, path, stop)
    assert refused == "PermissionError", refused
    opened = (path.parent.parent, path.parent)  # as if the user had opened them
    for folder in opened:
        folder.chmod(0o755)
    path.chmod(0o666)
    try:
        heard = _nobody(CONNECT, path, stop)
    finally:
        for folder in opened:
            folder.chmod(0o700)
    assert heard in ("heard b''", "ConnectionResetError", "BrokenPipeError"), heard
    return f"{refused}; with an open directory: closed at once"


def at_coordinator(run: Launched, pids: list[int]) -> str:
    """another user at the coordinator of --processes"""
    (path,) = run_directory.runtime_directory().glob(f"{run.directory.socket.stem}-????")
    refused = _nobody(CONNECT, path, "00")
    assert refused == "PermissionError", refused
    return refused


READ = """
for path in sys.argv[1:]:
    try:
        open(path, "rb").read()
        print("read", path)
    except PermissionError:
        pass
"""


def at_files(run: Launched, pids: list[int]) -> str:
    """another user reads the run's files and its secret"""
    files = [path for path in run.directory.path.rglob("*") if path.is_file()]
    secrets = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("environ", "mem")]
    read = _nobody(READ, *files, *secrets)
    assert not read, read
    secret = (run.directory.path / "secret").read_text()
    lines = [f"/proc/{pid}/cmdline" for pid in pids]
    arguments = _nobody("print(*(open(path).read() for path in sys.argv[1:]))", *lines)
    assert secret not in arguments, "the secret is an argument of a process"
    return f"none of {len(files)} files; the arguments of the processes, which all can read, hold no secret"


RUBBISH = """
kept = []
for number in range(200):
    connection = socket.socket()
    connection.settimeout(5)
    try:
        connection.connect(("127.0.0.1", int(sys.argv[1])))
        connection.sendall(os.urandom(number * 7 % 500))
    except OSError:
        pass
    kept.append(connection) if number % 2 else connection.close()
print(len(kept))
"""


def at_collectives(run: Launched, pids: list[int]) -> str:
    """another user sends rubbish to the collectives' ports"""
    ports = {int(address.rpartition(":")[2], 16) for pid in pids for address in listening_of(pid)}
    assert ports, "no port was found"
    for port in ports:
        _nobody(RUBBISH, port)
    return f"200 connections to each of {len(ports)} ports; steps went on"
