"""Attacks by other users of the machine and by programs that reach the coordinator: no command of theirs is accepted,
and nothing leaks except what docs/security.md lists."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import AnyEvent, EngineReady, EngineStopped, Failed, StepsDone
from shardtui.engine.wire.hosts import HostStatus
from shardtui.engine.wire.run_directory import RunDirectory

from ..attacker import Attacker
from ..conftest import SETTINGS, SHARDTUI
from ..distributed.test_hosts import free_port
from ..distributed.test_neighbours import answer_of, hostile_config, listening_of
from .messages import NotRun
from .row import Row

NOBODY = 65534
FLOOD = 300
"""Number of values, of one megabyte each."""
SECRET_WORDS = (b"learning_rate", b"gpt", b"nano", b"/tmp", b"/home", b".py", b"standard library", b"batch", b"[mesh]")
"""Words that appear in configurations, models, paths and presets."""
LATEST = 3.0
"""Most seconds from the first step to the begin of an attack."""


def run(times: int) -> Iterator[Row]:
    """Runs each attack over TCP `times` times, and each attack of another user once."""
    for attack in (_plant, _forge, _stop, _flood):
        yield _over_tcp(attack, times)
    wrong = list(filter(None, map(_read, range(times))))
    note = "; ".join(wrong[:3]) or "no configuration, model, path or preset"
    yield Row("read all that is there over TCP", times, times - len(wrong), note)
    for name, attack in (
        ("another user at the engine's socket", _at_socket),
        ("another user at the coordinator of --processes", _at_coordinator),
        ("another user reads the run's files and its secret", _at_files),
        ("another user sends rubbish to the collectives' ports", _at_collectives),
    ):
        yield _as_nobody(name, attack)


@contextmanager
def _hosts(name: str, *arguments: str):  # type: ignore[no-untyped-def]
    """Starts two engines, as on two hosts; kills those that still run at the end."""
    coordinator = f"127.0.0.1:{free_port()}"
    member = (f"--run={name}", f"--coordinator={coordinator}", "--num-processes=2", "--checkpoint-every=10", *arguments)
    command = [*SHARDTUI, "engine", *SETTINGS, *member]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, f"--process-id={number}"], **quiet) for number in range(2)]  # type: ignore[call-overload]
    try:
        yield Attacker(coordinator), RunDirectory(run_directory.state_home() / name), both
    finally:
        for engine in both:
            engine.kill()
            engine.communicate()


def _events(directory: RunDirectory) -> list[AnyEvent]:
    with suppress(FileNotFoundError):
        return [event for events in LogReader(directory.events).read() for event in events]
    return []


def _wait(holds: Callable[[], object], seconds: float = 120) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _done(directory: RunDirectory) -> int:
    return max((event.step for event in _events(directory) if isinstance(event, StepsDone)), default=0)


def _over_tcp(attack: Callable[..., str], times: int) -> Row:
    """Runs an attack `times` times, each against new engines; the attack returns what went wrong."""
    chance, wrong, ends = random.Random(0), [], {"went on": 0, "ended with the key": 0}
    folder = Path(os.environ["XDG_STATE_HOME"]).parent / attack.__name__
    folder.mkdir()
    for number in range(times):
        with _hosts(f"{attack.__name__.strip('_')}-{number}") as (attacker, directory, both):
            attacker.wait_for_service()
            if problem := attack(attacker, [folder, directory.path], chance):
                wrong.append(problem)
            before = _done(directory)
            if _wait(lambda: _done(directory) > before + 2 or any(e.poll() is not None for e in both), 60):  # noqa: B023
                time.sleep(1)
            problems = [
                problem for event in _events(directory) if isinstance(event, Failed) for problem in event.problems
            ]
            if all(engine.poll() is None for engine in both):
                ends["went on"] += 1
            elif any("is not sealed with the run's secret" in text for text in problems) or _reported_seal(both):
                ends["ended with the key"] += 1
            else:
                wrong.append(f"ended with {problems}")
            if any(isinstance(event, EngineStopped) for event in _events(directory)):
                wrong.append("it was stopped")
            if (folder / "marker").exists() or "evil" in str(problems):
                wrong.append("code was run, or a text shown")
    note = ", ".join(f"{count} {how}" for how, count in ends.items() if count)
    return Row(attack.__doc__ or "", times, times - len(wrong), "; ".join(wrong[:3]) or note)


def _reported_seal(both: "list[subprocess.Popen[str]]") -> bool:
    return any(
        engine.poll() is not None and engine.stderr and "is not sealed with the run's secret" in engine.stderr.read()
        for engine in both
    )


def _plant(attacker: Attacker, folders: list[Path], chance: random.Random) -> str:
    """agreements with a configuration whose model is the attacker's, planted as the service comes up"""
    config, _ = hostile_config(folders[0])
    until = time.monotonic() + chance.uniform(1, 8)
    while time.monotonic() < until:
        with suppress(Exception):  # the service may have ended
            for number in range(8):
                attacker.write(f"broadcast/0/{number}", answer_of(config))
            attacker.write("welcome", msgspec.msgpack.encode([b"evil"] * 2))
            attacker.write("hello/1", b"evil")
    return ""


def _forge(attacker: Attacker, folders: list[Path], chance: random.Random) -> str:
    """orders for the next steps, recorded and invented ones"""
    directory = RunDirectory(folders[1])
    if not _wait(lambda: _done(directory)):
        return "no step before the attack"
    time.sleep(chance.uniform(0, LATEST))
    agreed = attacker.read("broadcast")
    newest = max(int(key.rpartition("/")[2]) for key in agreed)
    commands = answer_of({"commands": [{"type": "SwitchPreset", "preset": "evil"}, {"type": "Stop"}], "stride": 1})
    recorded = agreed[f"broadcast/0/{newest}"]
    with suppress(Exception):
        for number in range(newest + 1, newest + 100):
            attacker.write(f"broadcast/0/{number}", chance.choice([commands, recorded, b""]))
    return ""


def _stop(attacker: Attacker, folders: list[Path], chance: random.Random) -> str:
    """signs of life that ask to stop, or say that a process failed, of processes 0, 1 and 9"""
    directory = RunDirectory(folders[1])
    if not _wait(lambda: _done(directory)):
        return "no step before the attack"
    time.sleep(chance.uniform(0, LATEST))
    status = HostStatus(process=1, step=7, bytes_in_use=0, is_stopping=True, problem="evil", beat=10**9)
    for _ in range(50):
        for number in (0, 1, 9):
            attacker.write(f"status/{number}", msgspec.msgpack.encode(status))
        time.sleep(0.1)
    return ""


def _flood(attacker: Attacker, folders: list[Path], chance: random.Random) -> str:
    """300 MB of values in the folders that are read, and connections that are closed at once"""
    directory = RunDirectory(folders[1])
    if not _wait(lambda: _done(directory)):
        return "no step before the attack"
    for number in range(FLOOD):
        attacker.write(f"{chance.choice(['status', 'noted', 'broadcast', 'evil'])}/{10**6 + number}", b"x" * 1_000_000)
    return ""


def _read(number: int) -> str:
    with _hosts(f"read-{number}", "--set=learning_rate=0.00012345") as (attacker, directory, _):
        attacker.wait_for_service()
        if not _wait(lambda: _done(directory)):
            return "no step before the attack"
        folders = ("broadcast", "gather", "status", "noted", "hello", "welcome", "cpu", "xla")
        found = {key: value for folder in folders for key, value in attacker.read(folder).items()}
        ours = b"".join(value for key, value in found.items() if not key.startswith(("cpu", "xla")))
        secret = (directory.path / "secret").read_bytes()
        leaked = [word.decode() for word in (*SECRET_WORDS, secret, b"0.00012345") if word in ours]
        return f"{', '.join(leaked)} could be read" if leaked or not ours else ""


def _as_nobody(name: str, attack: Callable[[RunDirectory, list[int]], str]) -> Row:
    """Runs an attack as another user, against the two processes of `train --processes 2`."""
    if os.getuid():
        return Row(name, 0, 0, "not run: becoming another user needs root")
    try:
        return Row(name, 1, 1, _attacked(name, attack))
    except NotRun as reason:
        return Row(name, 0, 0, f"not run: {reason}")
    except AssertionError as wrong:
        return Row(name, 1, 0, str(wrong))


def _attacked(name: str, attack: Callable[[RunDirectory, list[int]], str]) -> str:
    run_name = name.replace(" ", "-").replace("'", "").replace("--", "")[:40]
    command = [*SHARDTUI, "train", "--json", *SETTINGS, f"--run={run_name}", "--processes=2", "--steps=1000000"]
    directory = RunDirectory(run_directory.state_home() / run_name)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert _wait(lambda: _done(directory)), "no step before the attack"
        ready = next(event for event in _events(directory) if isinstance(event, EngineReady))
        note = attack(directory, [host.pid for host in ready.hosts])
        before = _done(directory)
        assert _wait(lambda: _done(directory) > before + 2, 60), f"it stands still: {_events(directory)[-1]}"
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
