"""The key-value store of jax's coordination service, with the run's seal on every value.

Other users may reach that store: a value without a valid seal is never used.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import jax

from ..base.output import say
from .seal import Forged, Seal

POLL_MILLISECONDS = 1000
"""A blocking read returns to Python this often, so that signals are handled."""


class SealedStore:
    def __init__(self, client: Any, seal: Seal, processes: int) -> None:
        self._client = client
        self._processes = processes
        self.seal = seal
        self.timeout = math.inf
        """Seconds that a read waits."""
        self._forged: set[str] = set()

    def write(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, self.seal.seal(key, value), allow_overwrite=True)

    def read(self, key: str) -> bytes:
        """Waits for the value and returns it. Raises Forged, and within `timeout` TimeoutError."""
        return self.seal.open(key, self._awaited(key))

    def of_each_process(self, folder: str) -> Iterator[bytes]:
        """Yields `folder/PROCESS` of each process that has written it. A value with an invalid seal is reported once
        and skipped: the process will write it again."""
        found = dict(self._client.key_value_dir_get_bytes(folder))
        for key in (f"{folder}{process}" for process in range(self._processes)):
            try:
                if key in found:
                    yield self.seal.open(key, found[key])
            except Forged as forged:
                if key not in self._forged:
                    self._forged.add(key)
                    say(str(forged))

    def delete(self, folder: str) -> None:
        self._client.key_value_delete(folder)

    def _awaited(self, key: str) -> bytes:
        until = time.monotonic() + self.timeout
        while True:
            if time.monotonic() > until:
                raise TimeoutError(key)
            try:
                return self._client.blocking_key_value_get_bytes(key, POLL_MILLISECONDS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
