"""Starts `python -m shardtui.…` by a fork of a process that has imported it, in 0.1 s in the place of 2.

`start` changes `subprocess.Popen` in this process. What it then starts is a real process and a child of the one that
started it, with a pid, a session, an environment and descriptors of its own, and it starts its own engines in the same
way. Only its modules were imported before it began, and its command line in `/proc` is that of the server. What is read
from the environment at import has to be the same, or an interpreter is started as usual.
"""

import ctypes
import fcntl
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
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from shardtui.engine.wire.engine_command import ENGINE

UI = "shardtui.tui"
STARTS_OTHERS = {"supervise", "supervise-host"}
IMPORTED = (
    *(f"{UI}.{name}" for name in ("app", "cli.inspect", "cli.plan")),
    *("shardtui.engine.checkpoint.export", "shardtui.engine.distributed.jax_cluster", "shardtui.engine.explain.step"),
    *("shardtui.engine.explain.programs", "shardtui.engine.planning.answers", "shardtui.engine.profiling.predicted"),
    *("shardtui.engine.program.inspection", "shardtui.engine.training.serve", "shardtui.engine.training.train"),
)
READ_AT_IMPORT = ("JAX_", "LC_", "LANG", "PYTHON")
"""Prefixes of environment variables that modules read when they are imported."""
PATH = "PYTHONPATH"
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
"""Names that `subprocess` gives the descriptors of a child and its own ends of their pipes."""
FREE = 100
MAX_REQUEST_BYTES = 1 << 20
PR_SET_CHILD_SUBREAPER = 36


class ForkServer:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._at_import = _read_at_import(os.environ)

    def install(self) -> None:
        signature = inspect.signature(self._execute)

        def execute(popen: Any, *arguments: Any) -> None:
            asked = signature.bind(popen, *arguments).arguments
            if self._can_start(asked):
                self._start(popen, asked)
            else:
                self._execute(popen, *arguments)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def _can_start(self, asked: Mapping[str, Any]) -> bool:
        environment = os.environ if asked["env"] is None else asked["env"]
        return (
            not isinstance(asked["args"], str | bytes | os.PathLike)
            and bool(_module(asked["args"]))
            and not any(asked[name] for name in ("executable", "preexec_fn", "shell"))
            and _read_at_import(environment) == self._at_import
        )

    def _start(self, popen: Any, asked: Mapping[str, Any]) -> None:
        kept = sorted(asked["pass_fds"])
        request = {
            "command": [*map(str, asked["args"])],
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "is_session": bool(asked["start_new_session"]),
            "kept": kept,
        }
        given = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        descriptors = [own if end == -1 else end for own, end in enumerate(given)]
        with self._lock:
            _adopt_orphans(True)  # so the process that the server leaves behind becomes a child of this one
            socket.send_fds(self._channel, [json.dumps(request).encode()], [*descriptors, *kept])
            popen.pid = int(self._channel.recv(100))
            _adopt_orphans(False)
        popen._child_created = True
        popen._close_pipe_fds(*(asked[end] for end in ENDS))


def start() -> None:
    """Starts a server, which ends with this process, and lets `subprocess.Popen` ask it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork has no threads of those that OpenBLAS starts
    )
    theirs.close()
    ForkServer(ours).install()


def _adopt_orphans(is_wanted: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT) and name != PATH}


def _module(command: Sequence[Any]) -> str:
    """The module of ours that a command runs; empty if it runs something else."""
    words = [*map(str, command)]
    for interpreter in ([sys.executable, "-m"], ENGINE[:-1]):
        rest = words[len(interpreter) :]
        if words[: len(interpreter)] == interpreter and rest and rest[0] in (UI, ENGINE[-1]):
            return rest[0]
    return ""


def _serve(channel: socket.socket) -> None:
    while True:
        message, descriptors = b"", []
        with suppress(ConnectionError):
            message, descriptors, *_ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 64)
        if not message:
            return
        between = os.fork()
        if not between:
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
    command, path = request["command"], os.environ.get(PATH)
    module = _module(command)
    arguments = command[command.index(module) + 1 :]
    if request["is_session"]:
        os.setsid()
    if module == UI or STARTS_OTHERS & {*arguments[:1]}:
        _leave_server(descriptors, channel)
    channel.send(str(os.getpid()).encode())
    channel.close()

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FREE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, target in zip(moved, [0, 1, 2, *request["kept"]], strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    sys.argv = [module, *arguments]
    if (added := os.environ.get(PATH)) and added != path:
        sys.path[:0] = added.split(os.pathsep)
        sys.modules.pop("sitecustomize", None)  # some distributions have one of their own
        with suppress(ImportError):
            import_module("sitecustomize")
    if "-P" not in command[:2]:
        sys.path.insert(0, request["folder"])
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _leave_server(descriptors: list[int], channel: socket.socket) -> None:
    """Leaves a copy of this process as its child, as the server of what it will start."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        ForkServer(ours).install()
        return
    ours.close()
    channel.close()
    for descriptor in descriptors:
        os.close(descriptor)
    _serve(theirs)
    os._exit(0)


if __name__ == "__main__":
    connection = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of this file
    for name in IMPORTED:
        import_module(name)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has no other threads"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    _serve(connection)
