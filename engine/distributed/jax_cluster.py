"""Several processes, on one host or many, as `jax.distributed` joins them.

What they tell each other goes through the key-value store of jax's own coordination service, which process 0 serves: no
collective, so that nothing gets between the steps of the devices. Others may reach that store: a value without a valid
seal of the run is never obeyed.
"""

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import msgspec
from jax._src.distributed import global_state  # jax has no public name for the store
from msgspec import Struct

from ..base.advice import TRACEBACK, problems_in
from ..base.invalid import Invalid
from ..wire.descriptions import HostInfo, HostStatus
from .cluster import Cluster
from .joining import HEARTBEAT_SECONDS
from .outcomes import Outcome, Stranded, error_of, outcome_of, unsuccessful, worst
from .seal import Forged, Seal

CLOSING_SECONDS = 30
"""In which process 0 waits for the others to leave."""
FAILING_SECONDS = 3
"""The same where process 0 ends because it failed: the others may hang."""
FAREWELL_SECONDS = 0.02
"""From one look at who is still there to the next."""
MISSING_SECONDS = 15.0
"""In which a process that is gone is missed."""
PATIENCE_SECONDS = 5
"""In which the others have to report how a collective attempt ended that failed here."""
BEAT_SECONDS = 1.0
"""From one look at the other processes to the next."""
SLICE_MILLISECONDS = 1000
"""A wait for another process returns so often, so that signals are heard."""
SHARE = 0.005
"""Part of a step that an agreement may take."""
LONGEST_SECONDS = 0.5
"""From one agreement to the next, where steps are shorter: a command may wait for so long."""
NONCE_BYTES = 16
GENERATION = 1000
"""Answers that are forgotten together, once those of the next generation are old."""
SILENCE = f"no sign of life for {HEARTBEAT_SECONDS} s: killed, hung, or cut off"

T = TypeVar("T")


def stride(call_seconds: float, step_seconds: float) -> int:
    """Steps from one agreement to the next; 1 while nobody knows yet how long a step takes, which is told as 0."""
    apart = min(call_seconds / SHARE, LONGEST_SECONDS)
    return math.ceil(apart / step_seconds) or 1 if step_seconds else 1


class Told(Struct, frozen=True):
    """What process 0 decided, or how it did not succeed."""

    value: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(None))
    outcome: Outcome = Outcome()


class JaxCluster(Cluster):
    def __init__(self, seal: Seal, stop: Callable[[], object], lost: Callable[[Mapping[int, str]], None]) -> None:
        """`stop` is called in process 0 where another one was told to stop, `lost` in every process where others are
        gone, with the reason by number. Both in a thread of its own."""
        self._seal = seal
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
        self._has_met = False
        self._patience: float | None = None
        """Seconds that this process waits for a word of another one; None: for ever, or until that one is lost."""
        self._forged: set[str] = set()
        """Keys of values without a valid seal that were passed over."""
        threading.Thread(target=self._watch, name="cluster", daemon=True).start()

    def agree(self, decide: Callable[[], T], kind: Any) -> T:
        told = self._passed_on(lambda: _decided(decide))
        if told.outcome.kind != "done":
            raise error_of(told.outcome.kind, told.outcome.problems)
        return msgspec.msgpack.decode(told.value, type=kind)

    def gather(self, value: T, kind: Any) -> list[T]:
        number, self._gathered = self._gathered, self._gathered + 1
        mine = msgspec.msgpack.encode(value)
        if self.process:
            self._write(f"gathered/{number}/{self.process}", mine)

        def all_values() -> Told:
            others = [self._read(f"gathered/{number}/{process}") for process in range(1, self.count)]
            self._client.key_value_delete(f"gathered/{number}/")
            return Told(msgspec.Raw(msgspec.msgpack.encode([msgspec.Raw(value) for value in (mine, *others)])))

        values = msgspec.msgpack.decode(self._passed_on(all_values).value, type=list[msgspec.Raw])
        return [msgspec.msgpack.decode(raw, type=kind) for raw in values]

    def _passed_on(self, tell: Callable[[], Told]) -> Told:
        """What `tell` gives in process 0, in every process."""
        number, self._agreed = self._agreed, self._agreed + 1
        key = f"agreed/{number // GENERATION}/{number}"
        if self.process:
            return msgspec.msgpack.decode(self._read(key), type=Told)
        told = tell()
        began = time.perf_counter()
        self._write(key, msgspec.msgpack.encode(told))
        self._call_seconds = time.perf_counter() - began
        if number % GENERATION == 0 and number >= 2 * GENERATION:
            self._client.key_value_delete(f"agreed/{number // GENERATION - 2}/")
        return told

    def together(self, attempt: Callable[[], T]) -> T:
        value, error = _tried(attempt)
        self._settle(self.gather(outcome_of(error), Outcome), error)
        return value  # type: ignore[return-value] # there is one: else it would have raised

    def collectively(self, attempt: Callable[[], T]) -> T:
        value, error = _tried(attempt)
        self._patience = None if error is None else PATIENCE_SECONDS
        try:
            outcomes = self.gather(outcome_of(error), Outcome)
        except TimeoutError:
            raise Stranded(*outcome_of(error).problems) from error
        finally:
            self._patience = None
        self._settle(outcomes, error)
        return value  # type: ignore[return-value]

    def _settle(self, outcomes: Sequence[Outcome], error: Exception | None) -> None:
        """Raises the same in every process, unless all have done it. `error`: that of this process."""
        if (kind := worst(outcomes)) != "done":
            if error is not None:
                unsuccessful(error)
            raise error_of(kind, self._named([outcome.problems for outcome in outcomes])) from error

    def note(self, name: str) -> None:
        self._write(f"noted/{name}/{self.process}", b"1")

    def have_all_noted(self, name: str) -> bool:
        return len(list(self._sealed_in(f"noted/{name}/"))) == self.count

    def forget(self, name: str) -> None:
        if self.process == 0:
            self._client.key_value_delete(f"noted/{name}/")

    def fingerprint(self, text: str) -> str:
        return self._seal.fingerprint(text)

    def stride(self, step_seconds: float) -> int:
        return stride(self._call_seconds, step_seconds)

    def statuses(self) -> list[HostStatus]:
        return self._statuses

    def report(self, step: int, bytes_in_use: int) -> None:
        self._own = msgspec.structs.replace(self._own, step=step, bytes_in_use=bytes_in_use)

    def ask_to_stop(self) -> None:
        """From a process that was told to: process 0 hears of it within two beats."""
        self._own = msgspec.structs.replace(self._own, is_stopping=True)

    def tell_stall(self, where: str) -> None:
        self._own = msgspec.structs.replace(self._own, stalled=where)

    def stalled_elsewhere(self) -> str | None:
        others = (status for status in self._statuses if status.stalled and status.process != self.process)
        return next((f"{status.stalled} on {self._name(status.process)}" for status in others), None)

    def fail(self, error: Exception) -> None:
        if not _is_own(error):
            time.sleep(MISSING_SECONDS)
        self._leave(msgspec.structs.replace(self._own, problem="; ".join(problems_in(error))), FAILING_SECONDS)
        if self.process:  # others are in a collective, and gloo aborts a process whose peer closes its connections
            time.sleep(FAILING_SECONDS)

    def close(self) -> None:
        self._leave(msgspec.structs.replace(self._own, is_closing=True), CLOSING_SECONDS)

    def _leave(self, last: HostStatus, seconds: float) -> None:
        """The service of process 0 ends with it, and jax aborts a process that still listens to it: process 0 waits
        until the others have left, but no longer than `seconds`."""
        self._is_closed = True
        self._own = last
        leaving = threading.Thread(target=self._say_farewell, name="farewell", daemon=True)
        leaving.start()
        leaving.join(seconds)

    def _say_farewell(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 did not wait
            self._tell_own()
            if self.process:
                self._client.shutdown()
            while self.process == 0 and len(self._client.get_live_nodes(list(range(self.count)))) > 1:
                time.sleep(FAREWELL_SECONDS)

    def _read_statuses(self) -> list[HostStatus]:
        """An older one than was seen before, which somebody may have recorded, changes nothing."""
        known = {status.process: status for status in self._statuses}
        for value in self._sealed_in("status/"):
            status = msgspec.msgpack.decode(value, type=HostStatus)
            if status.process not in known or status.beat >= known[status.process].beat:
                known[status.process] = status
        return [known[process] for process in sorted(known)]

    def meet(self) -> list[HostInfo]:
        self._seal = self._renewed()
        self._has_met = True
        own = HostInfo(process=self.process, processes=self.count, name=socket.gethostname(), pid=os.getpid())
        self.hosts = self.gather(own, HostInfo)
        if any(host.processes != self.hosts[0].processes for host in self.hosts):
            counts = ", ".join(f"{host.processes} on {self._name(host.process)}" for host in self.hosts)
            raise Invalid(f"--num-processes: {counts}: give the same number on every host")
        return self.hosts

    def _renewed(self) -> Seal:
        """The seal of this start. Raises Forged where this process did not contribute to it."""
        own = os.urandom(NONCE_BYTES)
        if self.process:
            self._write(f"hello/{self.process}", own)
            nonces = msgspec.msgpack.decode(self._read("welcome"), type=list[bytes])
            if nonces[self.process : self.process + 1] != [own]:
                raise Forged("welcome")
        else:
            nonces = [own, *(self._read(f"hello/{process}") for process in range(1, self.count))]
            self._write("welcome", msgspec.msgpack.encode(nonces))
        return self._seal.renewed(nonces)

    def _write(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, self._seal.close(key, value), allow_overwrite=True)

    def _read(self, key: str) -> bytes:
        """Once it is there. Raises Forged."""
        return self._seal.open(key, self._awaited(key))

    def _sealed_in(self, folder: str) -> Iterator[bytes]:
        """One value of each process, as far as they are there. One without a valid seal is named once and passed over:
        nothing waits for it, and the process will write it again."""
        found = dict(self._client.key_value_dir_get_bytes(folder))
        for key in (f"{folder}{process}" for process in range(self.count)):
            try:
                if key in found:
                    yield self._seal.open(key, found[key])
            except Forged as forged:
                if key not in self._forged:
                    self._forged.add(key)
                    print(f"shardtui: {forged}", file=sys.stderr, flush=True)

    def _awaited(self, key: str) -> bytes:
        """Raises TimeoutError where it is waited for with patience, and that is over."""
        until = math.inf if self._patience is None else time.monotonic() + self._patience
        while True:
            if time.monotonic() > until:
                raise TimeoutError(key)
            try:
                return self._client.blocking_key_value_get_bytes(key, SLICE_MILLISECONDS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def obituary(self, gone: Mapping[int, str]) -> list[str]:
        """Why the run ends: a line for each process that is gone, and one for the others."""
        steps = {status.process: status.step for status in self._statuses}
        lines = [
            f"{self._name(process)} {end} after step {steps.get(process, 0):,}: {why}"
            for process, why in gone.items()
            for end in ["is lost" if why == SILENCE else "failed"]
        ]
        well = [f"process {process} at step {step:,}" for process, step in steps.items() if process not in gone]
        return [
            *lines,
            f"{', '.join(well)}: well, but the state was in parts: resume the run, on as many processes as you like",
        ]

    def _name(self, process: int) -> str:
        host = next((host for host in self.hosts if host.process == process), None)
        return f"process {process}" + (f" ({host.name}, pid {host.pid})" if host else "")

    def _named(self, problems: Sequence[Sequence[str]]) -> list[str]:
        """Those of each process."""
        return [f"{self._name(process)}: {line}" for process, found in enumerate(problems) for line in found]

    def _tell_own(self) -> None:
        self._own = msgspec.structs.replace(self._own, beat=self._own.beat + 1)
        self._write(f"status/{self.process}", msgspec.msgpack.encode(self._own))

    def _watch(self) -> None:
        """Until the end of this process. That all look at each other at once is how the service wants to be asked."""
        everyone = list(range(self.count))
        while not self._is_closed:
            try:
                living = self._client.get_live_nodes(everyone)
                if self._has_met:
                    self._tell_own()
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


def _decided(decide: Callable[[], Any]) -> Told:
    value, error = _tried(decide)
    if error is None:
        return Told(msgspec.Raw(msgspec.msgpack.encode(value)))
    unsuccessful(error)
    return Told(outcome=outcome_of(error))


def _is_own(error: Exception) -> bool:
    """No other process can be the cause: it is not of jax's runtime, or this says that memory or the user's code is."""
    text = str(error)
    return not isinstance(error, jax.errors.JaxRuntimeError) or TRACEBACK in text or "RESOURCE_EXHAUSTED" in text


def _tried(attempt: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return attempt(), None
    except Exception as error:
        return None, error
