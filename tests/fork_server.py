"""Starts `python -m shardtui.…` by forking a process that has imported it, which takes milliseconds and not seconds.

`start` changes `subprocess.Popen` in this process. What it starts is a real process and its child, with a pid, a
session, an environment and descriptors of its own; the only difference is that its modules were imported before it
began. Such a process starts its engines in the same way. Whatever cannot be had by a fork, such as another
`PYTHONPATH` or other options of jax, is started by the interpreter, and so are processes on a terminal.
"""

import ctypes
import gc
import inspect
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shardtui.engine.wire.engine_command import ENGINE

MODULES = ("shardtui.tui", "shardtui.engine")
STARTS_OTHERS = {"supervise", "supervise-host"}
"""Commands of the engine that start engines."""
IMPORTED = (
    "shardtui.tui.app",
    "shardtui.tui.cli.inspect",
    "shardtui.tui.cli.plan",
    "shardtui.engine.checkpoint.cli",
    "shardtui.engine.distributed.jax_cluster",
    "shardtui.engine.origins.cli",
    "shardtui.engine.planning.cli",
    "shardtui.engine.profiling.cli",
    "shardtui.engine.program.cli",
    "shardtui.engine.training.follow",
    "shardtui.engine.training.train",
)
"""What the processes import most of."""
READ_AT_IMPORT = ("JAX_", "LC_", "LANG", "PYTHON")
"""Prefixes of the variables that have to be the same: they are read before a process knows what it has to do."""
PR_SET_CHILD_SUBREAPER = 36
FREE = 100
"""A descriptor from which on none is asked for."""
LARGEST = 1 << 20
"""Bytes of a request at most."""


class ForkServer:
    """The end of a connection at which processes are asked for; the other end is at a child of this process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._names = inspect.signature(self._execute)
        self._same = _read_at_import(os.environ)

    def install(self) -> None:
        """Lets `subprocess.Popen` ask here."""
        server = self

        def execute(popen: Any, *arguments: Any) -> None:
            asked = server._names.bind(popen, *arguments).arguments
            if server._can_start(asked):
                server._start(popen, asked)
            else:
                server._execute(popen, *arguments)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def _can_start(self, asked: Mapping[str, Any]) -> bool:
        return (
            not isinstance(asked["args"], str | bytes | os.PathLike)
            and _module(asked["args"]) in MODULES
            and not any(asked[name] for name in ("executable", "preexec_fn", "shell"))
            and _read_at_import(os.environ if asked["env"] is None else asked["env"]) == self._same
        )

    def _start(self, popen: Any, asked: Mapping[str, Any]) -> None:
        kept = sorted(asked["pass_fds"])
        request = {
            "command": [*map(str, asked["args"])],
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "is_session": bool(asked["start_new_session"]),
            "kept": kept,
            "parent": os.getpid(),
        }
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        descriptors = [own if end == -1 else end for own, end in enumerate(ends)]
        with self._lock:
            _adopt(True)  # what the server forks, and leaves, is a child of this process
            socket.send_fds(self._channel, [json.dumps(request).encode()], [*descriptors, *kept])
            popen.pid = int(self._channel.recv(100))
            _adopt(False)
        popen._child_created = True
        popen._close_pipe_fds(
            *(asked[f"{end}"] for end in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def start() -> None:
    """Starts a server, which ends with this process, and lets `subprocess.Popen` ask it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it starts threads, which a fork does not have
    )
    theirs.close()
    ForkServer(ours).install()


def _adopt(is_wanted: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}


def _module(command: Sequence[Any]) -> str:
    """Returns the module that an interpreter is told to run; empty if it is told something else."""
    words = [*map(str, command)]
    return next((words[at] for at in (2, 3) if words[:at] in ([sys.executable, "-m"], ENGINE[:3]) and words[at:]), "")


def _serve(channel: socket.socket) -> None:
    """Forks a process for each request, until nobody is left to make one."""
    while True:
        try:
            message, descriptors, *_ = socket.recv_fds(channel, LARGEST, 64)
        except ConnectionError:
            return
        if not message:
            return
        if not (between := os.fork()):
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            _become(json.loads(message), descriptors, channel)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int], channel: socket.socket) -> NoReturn:
    """Runs what was asked for, in this process."""
    command = request["command"]
    module = _module(command)
    arguments = command[command.index(module) + 1 :]
    if request["is_session"]:
        os.setsid()
    if module != "shardtui.engine" or {*arguments[:1]} & STARTS_OTHERS:
        _serve_others(descriptors, channel)
    if os.getppid() == request["parent"]:
        channel.send(str(os.getpid()).encode())
    channel.close()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    wanted = [0, 1, 2, *request["kept"]]
    moved = [_moved(descriptor) for descriptor in descriptors]
    for descriptor, target in zip(moved, wanted, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    sys.argv = [module, *arguments]
    if "-P" not in command[:2]:
        sys.path.insert(0, request["folder"])
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _serve_others(descriptors: list[int], channel: socket.socket) -> None:
    """Leaves a copy of this process as a child, which forks what this one will start."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        ForkServer(ours).install()
        return
    for end in (ours, channel):
        end.close()
    for descriptor in descriptors:
        os.close(descriptor)
    _serve(theirs)
    os._exit(0)


def _moved(descriptor: int) -> int:
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FREE)
    os.close(descriptor)
    return moved


if __name__ == "__main__":
    from importlib import import_module

    connection = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of this file
    for name in IMPORTED:
        import_module(name)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has no other threads"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    _serve(connection)
