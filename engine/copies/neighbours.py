"""Which processes of a run share the memory of a host, and how each reaches one on another host."""

from collections.abc import Sequence
from pathlib import Path

from ..distributed.address import LOOPBACK_ADDRESS
from ..distributed.cluster import Cluster
from .peers import Peer, Server


class Neighbours:
    """The processes of a run, by host. Made in all of them at once; serves this host's parts if there are others."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """`folder`: that of this host, which no other host has."""
        self._process, self._seal = cluster.process, cluster.seal
        self.hosts: Sequence[str] = cluster.gather(folder.name, str)
        """The host of each process, by its folder."""
        self._addresses: Sequence[str] = []
        if len(set(self.hosts)) > 1:
            host = cluster.address
            server = cluster.together(lambda: Server(folder, cluster.seal, is_local=host == LOOPBACK_ADDRESS))
            self._addresses = cluster.gather(f"{host}:{server.port}", str)

    def of(self, process: int) -> int | None:
        """Returns the next process in the ring that is on another host; None if all are on one."""
        count = len(self.hosts)
        ring = ((process + distance) % count for distance in range(1, count))
        return next((other for other in ring if self.hosts[other] != self.hosts[process]), None)

    @property
    def here(self) -> list[int]:
        """The processes on this host."""
        return [process for process, host in enumerate(self.hosts) if host == self.hosts[self._process]]

    def kept_bytes(self, sizes: Sequence[int]) -> int:
        """Returns the bytes of one copy that this host keeps, if `sizes` are those of the parts of each process."""
        senders = [process for process in range(len(sizes)) if self.of(process) in self.here]
        return sum(sizes[process] for process in (*self.here, *senders))

    def peer(self, process: int) -> Peer:
        """Connects to a process on another host. Raises OSError and Forged."""
        return Peer(self._addresses[process], self._seal)
