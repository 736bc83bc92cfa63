"""The UI on a run of another host, through a real ssh and sshd, over a line that is slow, and that breaks.

The line is a relay on loopback: a chunk arrives 100 ms later, one in a hundred 400 ms after that, as TCP would send it
again, and none while it is cut. It needs `apt install openssh-server`.
"""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardtui.engine.base.user_error import UserError
from shardtui.engine.wire.events import StepsDone
from shardtui.engine.wire.run_directory import find

from ..conftest import SHARDTUI
from ..recorded import events_in
from ..terminal import Terminal, training
from .figure import Figure, at_most
from .terminal import _bytes_in, _wait_for

DELAY, AGAIN, LOST = 0.1, 0.4, 0.01
"""Seconds of a chunk on the line and, for one of `LOST`, more; it keeps its place."""
WINDOW, REPEATS, KEYS, CUT = 10.0, 3, 40, 60.0
HOST_CONFIG = """\
Host vm
  HostName 127.0.0.1
  Port {line}
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
"""
SERVER_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PermitUserEnvironment no
"""


class Line:
    """Carries TCP connections from one port to another."""

    def __init__(self, to: int) -> None:
        self.bytes = 0
        self.port = 0
        self.is_cut = False
        self._to, self._loop, listens = to, asyncio.new_event_loop(), threading.Event()
        threading.Thread(target=self._run, args=(listens,), daemon=True).start()
        listens.wait()

    def _run(self, listens: threading.Event) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            listens.set()
            await server.serve_forever()

        self._loop.run_until_complete(serve())

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            data = b"-"
            while data and not writer.is_closing():
                due, data = await chunks.get()
                await asyncio.sleep(due - time.monotonic())
                while self.is_cut:
                    await asyncio.sleep(0.01)
                writer.write(data)
            writer.close()

        delivering = asyncio.ensure_future(deliver())
        data, last = b"-", 0.0
        while data:
            data = await reader.read(65536)
            self.bytes += len(data)
            last = max(last, time.monotonic() + DELAY + (AGAIN if random.random() < LOST else 0.0))
            chunks.put_nowait((last, data))
        await delivering


@contextmanager
def _line(folder: Path) -> Iterator[Line]:
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if not server:
        raise SystemExit("sshd: no such command: `apt install openssh-server`")
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(SERVER_CONFIG.format(port=port, folder=folder))
    process = subprocess.Popen([server, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL)
    line = Line(port)
    (folder / "config").write_text(HOST_CONFIG.format(line=line.port, folder=folder))
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    ssh.chmod(0o755)
    try:
        yield line
    finally:
        process.terminate()
        process.wait()


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, _line(Path(folder)) as line:
        names = ("XDG_STATE_HOME", "SHARDTUI_RUNTIME_DIR", "PYTHONPATH")
        environment = " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
        command = [*SHARDTUI, "train", "--run=far", "--steps=100000"]
        train = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not _steps():
                time.sleep(0.2)
            there, path = f"--command={environment} {' '.join(SHARDTUI)}", f"{folder}:{os.environ['PATH']}"
            terminal = Terminal("attach", "vm:far", there, size=(140, 40), PATH=path)
            terminal.until(training, "the first steps")
            figures = [_steady(terminal, line), *_keys(terminal), *_cut(terminal, line)]
            terminal.send("d")
            terminal.exit_code()
        finally:
            subprocess.run([*SHARDTUI, "stop", "far"], capture_output=True, check=False)
            train.wait()
    return figures


def _steps() -> int:
    """Returns the steps that the run has made, 0 before it has begun."""
    with suppress(FileNotFoundError, UserError):
        return max((event.step for event in events_in(find("far").events) if isinstance(event, StepsDone)), default=0)
    return 0


def _steady(terminal: Terminal, line: Line) -> Figure:
    rates: list[float] = []
    done = _steps()
    for _ in range(REPEATS):
        before = line.bytes
        _bytes_in(terminal, WINDOW)
        rates.append((line.bytes - before) / WINDOW)
    pace = (_steps() - done) / WINDOW / REPEATS
    against = f"nano, {pace:.1f} steps a second"
    return at_most(5000, "on the line in steady training, both directions", rates, "bytes/s", against)


def _keys(terminal: Terminal) -> list[Figure]:
    here: list[float] = []
    for number in range(KEYS):
        _bytes_in(terminal, 0.3 + 0.037 * (number % 5))
        here.append(1e3 * _wait_for(terminal, "l", b"log axis"))
        terminal.send("l")
    there: list[float] = []
    for _ in range(KEYS // 8):
        for key, shown in ((" ", "‖ paused"), (" ", "● training")):
            _bytes_in(terminal, 1.0)
            began = time.monotonic()
            terminal.press(key, shown)
            there.append(1e3 * (time.monotonic() - began))
    against = f"a line of {DELAY:g} s each way"
    return [
        at_most(30, "from a key to the first byte of its answer", here, "ms", against),
        at_most(1e3 * (4 * DELAY + 1), "from a command to its effect on the screen", there, "ms", against),
    ]


def _cut(terminal: Terminal, line: Line) -> list[Figure]:
    line.is_cut = True
    _bytes_in(terminal, CUT)
    assert any("reconnecting" in row for row in terminal.screen.display), "\n".join(terminal.screen.display)
    line.is_cut, began = False, time.monotonic()
    terminal.until(training, "a connection")
    seconds = time.monotonic() - began
    terminal.press(" ", "‖ paused")
    done = _steps()
    terminal.until(lambda text: f"step {done:,} " in text, "the last step")
    against = f"a line that was cut for {CUT:.0f} s"
    return [at_most(20, "from the line's return to live training on the screen", [seconds], "s", against)]
