"""How processes of one run know each other's values from anybody else's: a seal made with a secret of the run.

The key-value store of jax's coordination service has no authentication: whoever reaches its port reads, writes and
deletes. So each value carries an HMAC (RFC 2104, with SHA-256) over its key and its bytes. Keys hold the process and
the round, and the seal is renewed at every start, so that a recorded value is valid nowhere else. A sealed value can
still be read: docs/security.md lists what a reader learns.
"""

import hashlib
import hmac
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etils import epath

from ..base.invalid import Invalid
from ..spec.config import Membership, RunConfig
from ..wire.run_directory import RunDirectory

VARIABLE = "SHARDTUI_SECRET"
JOIN_SECONDS = 60
"""For all processes to come."""
SHORTEST = 16
"""Bytes of a secret that the user chose."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


class Forged(Exception):
    """A value in the store that no process of this run wrote. Its text is never shown."""

    def __init__(self, key: str) -> None:
        problem = (
            f"{key}: this value in the coordinator's store has no valid seal of the run: another program writes to the "
            "coordinator's port, or a process has another secret: give every process the same secret, and keep others "
            "away from that port"
        )
        super().__init__(problem)
        self.problems = (problem,)


@dataclass(frozen=True)
class Seal:
    secret: bytes

    def close(self, key: str, value: bytes) -> bytes:
        return self._mac(key, value) + value

    def open(self, key: str, sealed: bytes) -> bytes:
        """Raises Forged."""
        size = hashlib.sha256().digest_size
        mac, value = sealed[:size], sealed[size:]
        if not hmac.compare_digest(mac, self._mac(key, value)):
            raise Forged(key)
        return value

    def fingerprint(self, text: str) -> str:
        """By which processes compare what each was given: nothing can be guessed from it without the secret."""
        return self._mac("fingerprint", text.encode()).hex()

    def renewed(self, nonces: Sequence[bytes]) -> "Seal":
        """For one start, to which every process has contributed."""
        return Seal(self._mac("renewed", b"".join(nonces)))

    def _mac(self, key: str, value: bytes) -> bytes:
        return hmac.digest(self.secret, len(key).to_bytes(4, "big") + key.encode() + value, "sha256")


def is_local(coordinator: str | None) -> bool:
    """No other host reaches it."""
    return coordinator is not None and (
        coordinator.startswith("unix:") or coordinator.rpartition(":")[0].lower() in LOOPBACK
    )


def given_secret(membership: Membership) -> bytes | None:
    """From --secret-file or the environment; of no use with --insecure; None where there is none. Raises Invalid."""
    if membership.insecure:
        return b""
    if membership.secret_file is not None:
        return _read_secret(Path(membership.secret_file))
    if secret := os.environ.get(VARIABLE):
        return _checked(secret.encode(), VARIABLE)
    return None


def secret_problem(coordinator: str | None, membership: Membership, config: RunConfig) -> str | None:
    """Why a run has no secret although other hosts reach its coordinator. Raises Invalid where one that is given is
    none."""
    if is_local(coordinator) or given_secret(membership) is not None or config.checkpoints.directory is not None:
        return None
    return (
        f"--coordinator {coordinator or 'found by jax'}: other hosts reach it, and the processes of this run share no "
        f"secret: keep checkpoints where all hosts see them with --checkpoint-dir, give --secret-file FILE or "
        f"{VARIABLE}, the same on every host, or --insecure where nobody else is on the network"
    )


def shared_secret(directory: RunDirectory, config: RunConfig, coordinator: str | None, is_first: bool) -> bytes:
    """Of a run that was given none: the first process makes it, in the run directory or, where hosts share nothing but
    their checkpoints, beside these; the others wait for it. It stays with the run. Raises Invalid."""
    folder = str(directory.path) if is_local(coordinator) else directory.checkpoints(config)
    path = epath.Path(folder) / "secret"
    try:
        if is_first and not path.exists():
            _make_secret(path)
        _wait_for(path)
        return _checked(path.read_bytes(), str(path))
    except (OSError, ImportError) as error:
        raise Invalid(f"{path}: the run's secret cannot be kept there: {error}") from error


def _make_secret(path: epath.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"secret-{os.getpid()}")  # nobody reads half of it
    if "://" not in str(path):
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o600))
    new.write_bytes(os.urandom(32).hex().encode())
    new.rename(path)


def _wait_for(path: epath.Path) -> None:
    until = time.monotonic() + JOIN_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise Invalid(
                f"{path}: process 0 makes the run's secret there, and this process did not see it within "
                f"{JOIN_SECONDS} s: give a --checkpoint-dir that all hosts share, or --secret-file FILE"
            )
        time.sleep(0.1)


def _read_secret(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_opened_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise Invalid(f"--secret-file {path}: not a file that only you can read: chmod 600 it")
            return _checked(file.read(), f"--secret-file {path}")
    except OSError as error:
        raise Invalid(f"--secret-file {path}: cannot be read: {error.strerror}") from error


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _checked(secret: bytes, where: str) -> bytes:
    secret = secret.strip()
    if len(secret) < SHORTEST:
        raise Invalid(
            f"{where}: a secret of {len(secret)} bytes: at least {SHORTEST}: `openssl rand -hex 32` makes one"
        )
    return secret
