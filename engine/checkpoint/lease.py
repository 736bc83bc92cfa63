"""The lease of a directory of checkpoints: of all engines that reach it, on any host, one may change it.

It is a file in the directory itself, because a lock on another path does not cover it. Its holder rewrites it every few
seconds. No clocks are compared: a lease is stale once whoever looks has seen no change for ten seconds. It is replaced
only if it still is what was read: TensorStore ensures that by a lock on file systems, and by the object's generation on
object stores, as Orbax needs it, too.
"""

import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from etils import epath
from msgspec import Struct

from ..base.advice import problems_in
from ..base.encoding import encode_json
from ..base.untrusted import decode
from ..base.user_error import UserError
from ..distributed.outcomes import Failure
from ..wire import lock
from .reading import is_local, patiently

FILE_NAME = "lease.json"
BEAT_SECONDS = 2.0
STALE_SECONDS = 10.0
"""A lease that does not change for so long can be taken over."""
LOOK_SECONDS = 0.25


class Record(Struct, frozen=True, kw_only=True):
    """The content of the file. It stays when the lease is given back, so that a former holder cannot mistake it."""

    token: str = ""
    host: str = "another host"
    process: str = ""
    """Process id, boot, namespace and start, as in the lock of a run."""
    began: float = 0.0
    """Seconds since the epoch, for people."""
    beat: int = 0
    is_free: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it was given back, or its process ended on this host, which is certain only since the last boot."""
        return self.is_free or lock.parsed(self.process).where == "gone"

    @property
    def words(self) -> str:
        return f"process {lock.parsed(self.process).pid or '?'} on {self.host}"


class Lease:
    """This process's claim to the directory `root`, once it was taken."""

    def __init__(self, root: epath.Path) -> None:
        import tensorstore

        self._root = root
        self._own = Record(
            token=secrets.token_hex(4), host=socket.gethostname(), process=lock.own_text(), began=time.time()
        )
        local: Any = {"driver": "file", "path": f"{Path(root).absolute()}/", "file_io_sync": False}
        self._store = tensorstore.KvStore.open(local if is_local(root) else f"{root}/").result()
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self.lost = ""
        """Who has taken the lease over, in a sentence; empty while this process has it."""

    @property
    def token(self) -> str:
        return self._own.token

    def take(self, refusal: type[UserError] | type[Failure]) -> None:
        """Takes a lease that is free or stale. Raises `refusal` if another process holds it, Unreadable, and
        what TensorStore raises if it cannot be written."""
        path, began = self._root / FILE_NAME, time.monotonic()
        found, generation = patiently(path, self._read)
        while found and not found.has_ended and time.monotonic() - began < STALE_SECONDS:
            time.sleep(LOOK_SECONDS)
            before, (found, generation) = generation, patiently(path, self._read)
            if found and not found.has_ended and generation != before:
                raise refusal(self._refusal(found))
        if not self._replace(generation):
            raise refusal(self._refusal(self._read()[0] or Record()))
        threading.Thread(target=self._keep_beating, name="lease", daemon=True).start()

    def _refusal(self, holder: Record) -> str:
        return (
            f"{self._root}: {holder.words} saves its checkpoints there, and beat less than 1 s ago: stop that run, or "
            "choose another --run or --checkpoint-dir"
        )

    def check(self) -> None:
        """Raises Failure unless this process has the lease. Takes it again if it was deleted with the directory."""
        try:
            with self._changing:
                found, generation = self._read()
                if found or self.lost or not self._replace(generation):
                    self._compare(found or Record())
        except Exception as error:  # of TensorStore
            raise Failure(*problems_in(error)) from error
        if self.lost:
            raise Failure(self.lost)

    def release(self) -> None:
        self._ended.set()
        self._own = msgspec.structs.replace(self._own, is_free=True)
        with suppress(Exception):  # it will be stale
            self._beat()
        self.lost = self.lost or f"{self._root}: this engine has given these checkpoints back"

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            with suppress(Exception):  # a storage that fails now may recover
                self._beat()

    def _beat(self) -> None:
        with self._changing:
            found, generation = self._read()
            if found:
                self._compare(found)
                if not self.lost:
                    self._replace(generation)

    def _compare(self, found: Record) -> None:
        if found.token != self.token and not self.lost:
            self.lost = (
                f"{self._root}: {found.words} has taken over these checkpoints, because this engine had not beaten for "
                f"{STALE_SECONDS:g} s: it saves and deletes nothing more there: stop it"
            )

    def _read(self) -> tuple[Record | None, bytes]:
        """Returns the record, None if there is none, and the generation. An unknown text is of an unknown process."""
        result = self._store.read(FILE_NAME).result()
        if result.state == "missing":
            return None, result.stamp.generation
        try:
            return decode(result.value, Record, FILE_NAME), result.stamp.generation
        except UserError:
            return Record(), result.stamp.generation

    def _replace(self, generation: bytes) -> bool:
        """Writes the own record, unless another one was written since `generation`. Returns whether it did."""
        self._own = msgspec.structs.replace(self._own, beat=self._own.beat + 1)
        written = self._store.write(FILE_NAME, encode_json(self._own), if_equal=generation).result()
        return bool(written.generation)
