"""An attacker's program that reaches the port of jax's coordination service and speaks the protocol of XLA's clients.

Requests follow XLA's `coordination_service.proto`, with only the fields needed here.
"""

import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any

import grpc
from shardtui.engine.base.protobuf import message_class

SERVICE = "/xla.coordination.CoordinationService/"
MESSAGES = {
    "Source": ("fixed64 incarnation 3",),
    "Entry": ("bytes key 1", "bytes value 2"),
    "Insert": ("Source source 1", "Entry entry 2", "bool overwrites 3"),
    "Request": ("Source source 1", "bytes key 2"),
    "Folder": ("bytes key 1", "Entry* entries 2"),
}
Insert, Request, Folder = (message_class("attacker", MESSAGES, name) for name in ("Insert", "Request", "Folder"))
INCARNATION = re.compile(r"wrong service incarnation: requested \d+, currently (\d+)")


class Attacker:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._incarnation = 0

    def wait_for_service(self, seconds: float = 240) -> None:
        """Retries until the service answers; learns its incarnation from the error that names it."""
        until = time.monotonic() + seconds
        while not self._incarnation:
            assert time.monotonic() < until, "no service came up"
            with contextlib.suppress(grpc.RpcError):
                self.read("")
                return

    def write(self, key: str, value: bytes) -> None:
        self._call("InsertKeyValue", Insert(entry={"key": key.encode(), "value": value}, overwrites=True))

    def read(self, folder: str) -> Mapping[str, bytes]:
        answer = Folder.FromString(self._call("GetKeyValueDir", Request(key=folder.encode())))
        return {entry.key.decode(): entry.value for entry in answer.entries}

    def _call(self, method: str, request: Any) -> bytes:
        call = self._channel.unary_unary(SERVICE + method)
        for _ in range(2):
            request.source.incarnation = self._incarnation
            try:
                return call(request.SerializeToString(), timeout=5)
            except grpc.RpcError as error:
                known = INCARNATION.search(str(error))
                if known is None or int(known[1]) == self._incarnation:
                    raise
                self._incarnation = int(known[1])
        raise AssertionError("the service changed its incarnation twice")
