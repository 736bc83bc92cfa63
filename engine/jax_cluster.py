"""Several processes, on one host or many, as `jax.distributed` joins them.

What they tell each other goes through the key-value store of jax's own coordination service, which process 0 serves: no
collective, so that nothing gets between the steps of the devices.
"""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import msgspec
from jax._src.distributed import global_state  # jax has no public name for the store
from msgspec import Struct

from .cluster import Cluster
from .config import Invalid, Membership
from .protocol import HostInfo, HostStatus

HEARTBEAT_SECONDS = 10
"""A process that gives no sign of life for so long is lost."""
JOIN_SECONDS = 60
"""For all processes to come."""
CLOSING_SECONDS = 30
"""In which process 0 waits for the others to hear that all is over."""
BEAT_SECONDS = 1.0
"""From one look at the other processes to the next."""
SLICE_MILLISECONDS = 1000
"""A wait for another process returns so often, so that signals are heard."""
SHARE = 0.005
"""Part of a step that an agreement may take."""
LONGEST_SECONDS = 0.5
"""From one agreement to the next, where steps are shorter: a command may wait for so long."""
GENERATION = 1000
"""Answers that are forgotten together, once those of the next generation are old."""
SILENCE = f"no sign of life for {HEARTBEAT_SECONDS} s: killed, hung, or cut off"

T = TypeVar("T")


def stride(call_seconds: float, step_seconds: float) -> int:
    """Steps from one agreement to the next; 1 while nobody knows yet how long a step takes, which is told as 0."""
    apart = min(call_seconds / SHARE, LONGEST_SECONDS)
    return math.ceil(apart / step_seconds) or 1 if step_seconds else 1


class Told(Struct, frozen=True):
    """What process 0 decided, or why it could not."""

    value: msgspec.Raw = msgspec.Raw(b"")
    problems: list[str] | None = None


class JaxCluster(Cluster):
    def __init__(self, stop: Callable[[], None], lost: Callable[[Mapping[int, str]], None]) -> None:
        """`stop` is called in process 0 where another one was told to stop, `lost` in every process where others are
        gone, with the reason by number. Both in a thread of its own."""
        self.process, self.count = global_state.process_id, global_state.num_processes
        self.hosts: list[HostInfo] = []
        self._client: Any = global_state.client
        self._agreed = self._gathered = 0
        self._call_seconds = 0.0
        self._stop = stop
        self._lost = lost
        self._is_closed = False
        self._own = HostStatus(process=self.process, step=0, bytes_in_use=0)
        self._statuses: list[HostStatus] = []
        threading.Thread(target=self._watch, name="cluster", daemon=True).start()

    def agree(self, decide: Callable[[], T], kind: Any) -> T:
        number, self._agreed = self._agreed, self._agreed + 1
        key = f"agreed/{number // GENERATION}/{number}"
        if self.process:
            told = msgspec.msgpack.decode(self._awaited(key), type=Told)
        else:
            told = _told(decide)
            began = time.perf_counter()
            self._set(key, msgspec.msgpack.encode(told))
            self._call_seconds = time.perf_counter() - began
            if number % GENERATION == 0 and number >= 2 * GENERATION:
                self._client.key_value_delete(f"agreed/{number // GENERATION - 2}/")
        if told.problems is not None:
            raise Invalid(*told.problems)
        return msgspec.msgpack.decode(told.value, type=kind)

    def gather(self, value: T, kind: Any) -> list[T]:
        number, self._gathered = self._gathered, self._gathered + 1
        mine = msgspec.msgpack.encode(value)
        if self.process:
            self._set(f"gathered/{number}/{self.process}", mine)

        def all_values() -> list[msgspec.Raw]:
            others = [self._awaited(f"gathered/{number}/{process}") for process in range(1, self.count)]
            self._client.key_value_delete(f"gathered/{number}/")
            return [msgspec.Raw(value) for value in (mine, *others)]

        return [msgspec.msgpack.decode(raw, type=kind) for raw in self.agree(all_values, list[msgspec.Raw])]

    def together(self, attempt: Callable[[], T]) -> T:
        failure, value = None, None
        try:
            value = attempt()
        except Exception as error:
            failure = error
        outcomes = self.gather(None if failure is None else _lines(failure), list[str] | None)
        if failure is not None:
            raise failure
        if problems := self._named(outcomes):
            raise Invalid(*problems)
        return value  # type: ignore[return-value]

    def note(self, name: str) -> None:
        self._set(f"noted/{name}/{self.process}", b"1")

    def have_all_noted(self, name: str) -> bool:
        return len(self._client.key_value_dir_get_bytes(f"noted/{name}/")) >= self.count

    def stride(self, step_seconds: float) -> int:
        return stride(self._call_seconds, step_seconds)

    def statuses(self) -> list[HostStatus]:
        return self._statuses

    def report(self, step: int, bytes_in_use: int) -> None:
        self._own = msgspec.structs.replace(self._own, step=step, bytes_in_use=bytes_in_use)

    def ask_to_stop(self) -> None:
        """From a process that was told to: process 0 hears of it within two beats."""
        self._own = msgspec.structs.replace(self._own, is_stopping=True)

    def fail(self, problem: str) -> None:
        """Tells the others why this process ends."""
        self._own = msgspec.structs.replace(self._own, problem=problem)
        self._tell_own()

    def close(self) -> None:
        self._is_closed = True
        self._own = msgspec.structs.replace(self._own, is_closing=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 did not wait
            self._tell_own()
            until = time.monotonic() + CLOSING_SECONDS
            while self.process == 0 and time.monotonic() < until and not self._are_all_closing():
                time.sleep(0.05)

    def _are_all_closing(self) -> bool:
        self._statuses = self._read_statuses()
        return all(status.is_closing for status in self._statuses)

    def _read_statuses(self) -> list[HostStatus]:
        told = self._client.key_value_dir_get_bytes("status/")
        found = (msgspec.msgpack.decode(status, type=HostStatus) for _, status in told)
        return sorted(found, key=lambda status: status.process)

    def meet(self) -> list[HostInfo]:
        own = HostInfo(process=self.process, processes=self.count, name=socket.gethostname(), pid=os.getpid())
        self.hosts = self.gather(own, HostInfo)
        if any(host.processes != self.hosts[0].processes for host in self.hosts):
            counts = ", ".join(f"{host.processes} on {self._name(host.process)}" for host in self.hosts)
            raise Invalid(f"--num-processes: {counts}: give the same number on every host")
        return self.hosts

    def _set(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def _awaited(self, key: str) -> bytes:
        while True:
            try:
                return self._client.blocking_key_value_get_bytes(key, SLICE_MILLISECONDS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def obituary(self, gone: Mapping[int, str]) -> list[str]:
        """Why the run ends: a line for each process that is gone, and one for the others."""
        steps = {status.process: status.step for status in self._statuses}
        lines = [
            f"{self._name(process)} is lost after step {steps.get(process, 0):,}: {why}"
            for process, why in gone.items()
        ]
        well = [f"process {process} at step {step:,}" for process, step in steps.items() if process not in gone]
        return [
            *lines,
            f"{', '.join(well)}: well, but the state was in parts: resume the run, on as many processes as you like",
        ]

    def _name(self, process: int) -> str:
        host = next((host for host in self.hosts if host.process == process), None)
        return f"process {process}" + (f" ({host.name}, pid {host.pid})" if host else "")

    def _named(self, problems: Sequence[Sequence[str] | None]) -> list[str]:
        """Those of each process."""
        return [f"{self._name(process)}: {line}" for process, found in enumerate(problems) for line in found or ()]

    def _tell_own(self) -> None:
        self._set(f"status/{self.process}", msgspec.msgpack.encode(self._own))

    def _watch(self) -> None:
        """Until the end of this process. That all look at each other at once is how the service wants to be asked."""
        everyone = list(range(self.count))
        while not self._is_closed:
            try:
                self._tell_own()
                living = self._client.get_live_nodes(everyone)
                self._statuses = self._read_statuses()
            except jax.errors.JaxRuntimeError:  # the service is gone, and process 0 with it
                living = everyone[1:]
            gone = {status.process: status.problem for status in self._statuses if status.problem}
            closing = [status.process for status in self._statuses if status.is_closing]
            gone |= {process: SILENCE for process in everyone if process not in (*living, *closing, *gone)}
            if gone and not self._is_closed:
                self._lost(gone)
                return
            if self.process == 0 and any(status.is_stopping for status in self._statuses):
                self._stop()
            time.sleep(BEAT_SECONDS)


def number() -> int:
    """Of this process, once it is connected."""
    return global_state.process_id


def connect(membership: Membership) -> bool:
    """Joins the other processes; False where nothing was asked for and there are none. Raises Invalid where they cannot
    be found, or do not fit, within `JOIN_SECONDS`."""
    _refuse_taken_port(membership)
    jax.config.update("jax_enable_recoverability", True)  # process 0 lives on where another one dies, and says so
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    joining = ThreadPoolExecutor(max_workers=1, thread_name_prefix="joining").submit(
        jax.distributed.initialize,
        membership.coordinator,
        membership.processes,
        membership.process,
        initialization_timeout=2 * JOIN_SECONDS,  # where that is over, the process is aborted
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    try:
        joining.result(timeout=JOIN_SECONDS)
    except TimeoutError as error:
        raise Invalid(_too_few(membership)) from error
    except (RuntimeError, ValueError) as error:  # jax's own error of the service is a RuntimeError
        if membership == Membership() and isinstance(error, ValueError):
            return False
        raise Invalid(_why_alone(membership, error)) from error
    return True


def _refuse_taken_port(membership: Membership) -> None:
    """The service would end the process. Raises Invalid."""
    if membership.process != 0 or membership.coordinator is None:
        return
    host, _, port = membership.coordinator.rpartition(":")
    try:
        with socket.create_server(("", int(port))):
            pass
    except OSError as error:
        raise Invalid(
            f"--coordinator {membership.coordinator}: port {port} of this machine cannot be served: {error.strerror}: "
            f"choose another port, or end what serves {host}:{port}"
        ) from error


def _too_few(membership: Membership) -> str:
    return (
        f"--coordinator {membership.coordinator or 'found by jax'}: {membership.processes or 'the'} processes did not "
        f"meet there within {JOIN_SECONDS} s: start `shardtui engine` on every host with the same --coordinator and "
        "--num-processes, --process-id from 0 up, and see that the hosts reach this port"
    )


def _why_alone(membership: Membership, error: Exception) -> str:
    if membership.coordinator is None:
        return f"the cluster that jax found: {error}: give --coordinator, --num-processes and --process-id"
    return f"--coordinator {membership.coordinator}: {str(error).splitlines()[0]}"


def _told(decide: Callable[[], Any]) -> Told:
    try:
        return Told(msgspec.Raw(msgspec.msgpack.encode(decide())))
    except Invalid as error:
        return Told(problems=list(error.problems))


def _lines(error: Exception) -> list[str]:
    return list(getattr(error, "problems", ())) or [f"{type(error).__name__}: {error}".splitlines()[0]]
