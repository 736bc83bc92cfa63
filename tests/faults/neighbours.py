"""Attacks by another user of the machine: none of their commands is obeyed, and they read only what docs/security.md
lists. tests/distributed/test_neighbours.py has the attacks over TCP."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import AnyEvent, EngineReady, StepsDone
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import SETTINGS, SHARDTUI
from ..distributed.test_neighbours import listening_of
from ..processes import awaited
from .row import Row, tried

NOBODY = 65534


def run(times: int) -> Iterator[Row]:
    """Runs each attack once, whatever `times`."""
    for name, attack in (
        ("another user at the engine's socket", _at_socket),
        ("another user at the coordinator of --processes", _at_coordinator),
        ("another user reads the run's files and its secret", _at_files),
        ("another user sends rubbish to the collectives' ports", _at_collectives),
    ):
        yield _as_nobody(name, attack)


def _events(directory: RunDirectory) -> list[AnyEvent]:
    with suppress(FileNotFoundError):
        return [event for events in LogReader(directory.events).read() for event in events]
    return []


def _done(directory: RunDirectory) -> int:
    return max((event.step for event in _events(directory) if isinstance(event, StepsDone)), default=0)


def _as_nobody(name: str, attack: Callable[[RunDirectory, list[int]], str]) -> Row:
    """Runs an attack as another user, against the two processes of `train --processes 2`."""
    if os.getuid():
        return Row(name, 0, 0, "not run: becoming another user needs root")
    return tried(name, 1, lambda: _attacked(name, attack))


def _attacked(name: str, attack: Callable[[RunDirectory, list[int]], str]) -> str:
    run_name = name.replace(" ", "-").replace("'", "").replace("--", "")[:40]
    command = [*SHARDTUI, "train", "--json", *SETTINGS, f"--run={run_name}", "--processes=2", "--steps=1000000"]
    directory = RunDirectory(run_directory.state_home() / run_name)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        awaited(lambda: _done(directory), "a step before the attack")
        ready = next(event for event in _events(directory) if isinstance(event, EngineReady))
        note = attack(directory, [host.pid for host in ready.hosts])
        before = _done(directory)
        awaited(lambda: _done(directory) > before + 2, lambda: f"a step after {_events(directory)[-1]}", 60)
        process.terminate()
        said = process.communicate(timeout=90)[1]
        assert process.returncode == 0, said
        return note
    finally:
        process.kill()
        process.wait()


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


def _at_socket(directory: RunDirectory, pids: list[int]) -> str:
    path, stop = directory.socket, framing.frame(Stop()).hex()
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


def _at_coordinator(directory: RunDirectory, pids: list[int]) -> str:
    (path,) = run_directory.runtime_directory().glob(f"{directory.socket.stem}-????")
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


def _at_files(directory: RunDirectory, pids: list[int]) -> str:
    files = [path for path in directory.path.rglob("*") if path.is_file()]
    secrets = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("environ", "mem")]
    read = _nobody(READ, *files, *secrets)
    assert not read, read
    secret = (directory.path / "secret").read_text()
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


def _at_collectives(directory: RunDirectory, pids: list[int]) -> str:
    ports = {int(address.rpartition(":")[2], 16) for pid in pids for address in listening_of(pid)}
    assert ports, "no port was found"
    for port in ports:
        _nobody(RUBBISH, port)
    return f"200 connections to each of {len(ports)} ports; steps went on"
