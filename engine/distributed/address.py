"""The address at which the other hosts of a run reach this one."""

import socket

LOOPBACK_ADDRESS = "127.0.0.1"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def is_local(coordinator: str | None) -> bool:
    return coordinator is not None and (
        coordinator.startswith("unix:") or coordinator.rpartition(":")[0].lower() in LOOPBACK
    )


def reachable_address(coordinator: str, process: int) -> str:
    """Returns the address of the interface towards the coordinator; for process 0, which serves it, the coordinator's.
    `coordinator`: HOST:PORT, or `unix:/path` if all processes are on this machine."""
    if is_local(coordinator):
        return LOOPBACK_ADDRESS
    host, _, port = coordinator.rpartition(":")
    if process == 0:
        return host
    try:
        (family, kind, *_, address), *_ = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as towards:
            towards.connect(address)  # sends nothing
            return towards.getsockname()[0]
    except OSError:  # that host is gone, and its name with it
        return socket.gethostbyname(socket.gethostname())
