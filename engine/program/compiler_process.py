"""Compiles programs in a process of its own: a compiler that aborts ends that process, and the run goes on.

XLA ends its process where a check fails or memory runs out. Whatever jax is asked to compile in the context
`compiled_apart`, and does not find in its cache, is compiled in the other process and loaded into this one.
"""

import contextlib
import functools
import io
import os
import queue
import select
import subprocess
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, TypeVar

import jax
import msgspec
from jax.interpreters import mlir
from jaxlib.mlir import ir
from msgspec import Struct

from ..base.advice import error_line, last_words
from ..base.output import note
from ..base.processes import KILL_SECONDS, STOPPED, Clock, StopClock, cpu_time, end_with_parent, exit_words, wait_for
from ..base.user_error import UserError
from ..wire.engine_command import engine_command

T = TypeVar("T")
Compile = Callable[..., Any]
QUESTION = "compile-programs"
LONGEST_SECONDS = 1800.0
"""A compiler that takes longer hangs: for simulated devices, even large programs take minutes."""
IDLE_SECONDS = 60.0
"""So does one that computes nothing for so long: a thread of Python that finds no memory to start is waited for."""
POLL_SECONDS = 0.5
HANGS = f"the compiler's process was killed after {LONGEST_SECONDS / 60:.0f} min, without a result"
IDLE = f"the compiler's process was killed, as it had computed nothing for {IDLE_SECONDS:.0f} s"
OF_THIS_PROCESS = (b"CustomSPMDPartitioning", b"InspectSharding")
"""Calls with addresses of this process's functions, which the compiler calls."""


class CompilerEnded(UserError):
    """The compiler's process ended before it had compiled a program, or was ended because it hangs."""


class Asked(Struct, frozen=True):
    """A program to compile."""

    module: bytes
    """MLIR bytecode."""
    options: bytes
    """Serialized `CompileOptions`."""
    devices: list[int]
    """Ids of the devices it is for."""


class Compiled(Struct, frozen=True):
    executable: bytes | None
    """Serialized; None if the compiler refuses the program."""


@contextlib.contextmanager
def compiler_process(devices: int) -> "Generator[CompilerProcess]":
    """Starts a process with this many simulated devices, and ends it whatever it does. Raises OSError."""
    with (
        TemporaryFile(buffering=0) as file,
        TemporaryFile(buffering=0) as stderr,
        subprocess.Popen[bytes](
            engine_command(QUESTION, str(devices), str(file.fileno())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[file.fileno()],
            start_new_session=True,  # Ctrl-C at the terminal must not reach it
        ) as process,
    ):
        try:
            yield CompilerProcess(process, file, stderr)
        finally:
            process.kill()


@dataclass(frozen=True)
class CompilerProcess:
    process: "subprocess.Popen[bytes]"
    file: io.FileIO
    """Has the program, then the executable."""
    stderr: io.FileIO

    def compiled(self, asked: Asked) -> bytes | None:
        """Returns the serialized executable; None if the compiler refuses the program. Raises CompilerEnded."""
        assert self.process.stdin
        _write(self.file, asked)
        with contextlib.suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b"\n")
        problem, printed = self._problem(), self._printed()
        note(*printed)
        if problem:
            raise CompilerEnded(": ".join(filter(None, (problem, last_words(printed)))))
        return _read(self.file, Compiled).executable

    def _problem(self) -> str:
        """Waits for the answer. Returns why there will be none, or an empty text."""
        assert self.process.stdout
        stopped, idle, clock, seconds = StopClock(self.process.pid), Clock(), Clock(), 0.0
        while not select.select([self.process.stdout], [], [], POLL_SECONDS)[0]:
            seconds += clock.passed()
            if stopped.is_over():
                return f"the compiler's process was {STOPPED}"
            if idle.unchanged(cpu_time(self.process.pid)) >= IDLE_SECONDS:
                return IDLE
            if seconds > LONGEST_SECONDS:
                return HANGS
        if os.read(self.process.stdout.fileno(), 1):
            return ""
        wait_for(self.process, KILL_SECONDS, then=self.process.kill)
        return exit_words(self.process.returncode, "the compiler's process")

    def _printed(self) -> list[str]:
        self.stderr.seek(0)
        printed = self.stderr.read().decode(errors="replace").splitlines()
        self.stderr.seek(0)
        self.stderr.truncate()
        return printed


class Apart:
    """Compiles the programs of a thread in another process, which it starts for the first of them."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self._process: CompilerProcess | None = None
        self.last: tuple[Any, bytes] | None = None
        """The last program from the other process, and its serialized form."""

    def compiled(self, here: Compile, backend: Any, module: ir.Module, devices: Any, options: Any, hooks: Any) -> Any:
        """Returns what `here`, jax's function, would. Raises CompilerEnded, and whatever `here` raises."""
        code = io.BytesIO()
        module.operation.write_bytecode(code)
        if not is_possible(backend.platform) or hooks or any(call in code.getvalue() for call in OF_THIS_PROCESS):
            return here(backend, module, devices, options, hooks)
        self._process = self._process or self._opened.enter_context(compiler_process(backend.device_count()))
        asked = Asked(code.getvalue(), options.SerializeAsString(), [device.id for device in devices])
        serialized = self._process.compiled(asked)
        if serialized is None:  # compiled here it raises what jax's callers know
            return here(backend, module, devices, options, hooks)
        executable = backend.deserialize_executable(serialized, devices, options)
        self.last = executable, serialized
        return executable

    def close(self) -> None:
        self._opened.close()


class _Thread(threading.local):
    apart: Apart | None = None


_thread = _Thread()


def is_possible(platform: str) -> bool:
    """Whether another process can compile for these devices: only one can use a TPU or all of a GPU's memory, and
    programs of several processes are for the devices of all."""
    return platform == "cpu" and jax.process_count() == 1


@contextlib.contextmanager
def compiled_apart() -> Generator[None]:
    """Whatever this thread compiles in this context is compiled in another process, as far as `is_possible`."""
    with contextlib.closing(Apart()) as _thread.apart:
        try:
            yield
        finally:
            _thread.apart = None


def compiled_here_or_apart(here: Compile) -> Compile:
    """Wraps jax's function that compiles a program which is not in its cache."""

    @functools.wraps(here)
    def compiled(*arguments: Any) -> Any:
        return _thread.apart.compiled(here, *arguments) if _thread.apart else here(*arguments)

    return compiled


class Stored:
    """Stands for a program whose serialized form is known: on CPU, one that was loaded cannot be serialized again."""

    def __init__(self, serialized: bytes) -> None:
        self._serialized = serialized

    def serialize(self) -> bytes:
        return self._serialized


def serializable(executable: Any) -> Any:
    """Returns what jax can write to its cache in the place of a program that this thread has just compiled."""
    last = _thread.apart and _thread.apart.last
    return Stored(last[1]) if last and last[0] is executable else executable


def compile_programs(devices: int, file: int) -> None:
    """Compiles the programs that another process writes to the file descriptor, until that process ends. Each line on
    stdin stands for one; the answer is written to the file, then a line to stdout."""
    jax.config.update("jax_num_cpu_devices", devices)
    asked = queue.SimpleQueue[bytes]()
    end_with_parent(asked.put)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    with open(file, "r+b", buffering=0) as shared:
        while asked.get():
            _write(shared, Compiled(_compiled(_read(shared, Asked))))
            os.write(answers, b"\n")


def _compiled(asked: Asked) -> bytes | None:
    from jaxlib._jax import CompileOptions, DeviceList  # jax 0.10 and 0.12 have no public names for these

    found = {device.id: device for device in jax.devices()}
    devices = DeviceList(tuple(found[number] for number in asked.devices))
    try:
        with mlir.make_ir_context():
            module, options = ir.Module.parse(asked.module), CompileOptions.ParseFromString(asked.options)
            return jax.devices()[0].client.compile_and_load(module, devices, options).serialize()
    except Exception as error:
        note(error_line(error))
        return None


def _write(file: io.FileIO, message: Struct) -> None:
    file.seek(0)
    file.truncate()
    file.write(msgspec.msgpack.encode(message))


def _read(file: io.FileIO, kind: type[T]) -> T:
    file.seek(0)
    return msgspec.msgpack.decode(file.read(), type=kind)
