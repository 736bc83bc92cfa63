"""Authenticates the values that processes of a run exchange, with a secret of the run.

The key-value store of jax's coordination service has no authentication: whoever reaches its port can read, write and
delete. So each value carries an HMAC (RFC 2104, with SHA-256) over its key and its bytes. Keys contain the process
index and the round, and the seal is renewed at every start, so that a replayed value is never valid. Sealed values are
not encrypted: docs/security.md lists what a reader learns.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etils import epath

from ..base.atomic_write import write_atomically
from ..base.regular_file import open_regular, read_regular
from ..base.untrusted import refusing
from ..base.user_error import UserError
from ..spec.config import Membership, RunConfig
from ..wire.run_directory import RunDirectory
from .address import is_local

VARIABLE = "SHARDTUI_SECRET"
JOIN_SECONDS = 60
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 2**16


class Forged(Exception):
    """A value in the store that no process of this run wrote. The value is never shown."""

    def __init__(self, key: str) -> None:
        problem = (
            f"{key}: this value in the coordinator's store is not sealed with the run's secret: another program writes "
            "to the coordinator's port, or a process has a different secret: give every process the same secret, and "
            "block other programs from that port"
        )
        super().__init__(problem)
        self.problems = (problem,)


@dataclass(frozen=True)
class Seal:
    secret: bytes

    def seal(self, key: str, value: bytes) -> bytes:
        return self._mac(key, value) + value

    def open(self, key: str, sealed: bytes) -> bytes:
        """Returns the value that was sealed under `key`. Raises Forged if the HMAC does not match."""
        size = hashlib.sha256().digest_size
        mac, value = sealed[:size], sealed[size:]
        if not hmac.compare_digest(mac, self._mac(key, value)):
            raise Forged(key)
        return value

    def fingerprint(self, text: str) -> str:
        """Returns an HMAC of `text`, by which processes compare texts without revealing them."""
        return self._mac("fingerprint", text.encode()).hex()

    def renewed(self, nonces: Sequence[bytes]) -> "Seal":
        return Seal(self._mac("renewed", b"".join(nonces)))

    def _mac(self, key: str, value: bytes) -> bytes:
        return hmac.digest(self.secret, len(key).to_bytes(4, "big") + key.encode() + value, "sha256")


def given_secret(membership: Membership) -> bytes | None:
    """Returns the secret from --secret-file or the environment; empty with --insecure, None if there is none. Raises
    UserError if it cannot be used."""
    if membership.insecure:
        return b""
    if membership.secret_file is not None:
        return _read_secret(Path(membership.secret_file))
    if secret := os.environ.get(VARIABLE):
        return _checked(os.fsencode(secret), VARIABLE)
    return None


def require_secret(coordinator: str | None, membership: Membership, config: RunConfig) -> None:
    """Raises UserError if a run needs a secret, because other hosts reach its coordinator, and has none; or if a given
    secret cannot be used."""
    if is_local(coordinator) or given_secret(membership) is not None or config.checkpoints.directory is not None:
        return
    raise UserError(
        f"--coordinator {coordinator or 'found by jax'}: other hosts can reach it, and this run has no "
        f"secret: give a --checkpoint-dir that all hosts share, or --secret-file FILE or "
        f"{VARIABLE}, the same on every host, or --insecure if the network is private"
    )


def shared_secret(directory: RunDirectory, config: RunConfig, coordinator: str | None, is_first: bool) -> bytes:
    """Returns the generated secret of a run without a given one; it is kept with the run. The first process generates
    it, in the run directory, or next to the checkpoints if there are several hosts; the others wait for it. Raises
    UserError if it cannot be written or read."""
    folder = str(directory.path) if is_local(coordinator) else directory.checkpoints(config)
    path = epath.Path(folder) / "secret"
    try:
        if is_first and not path.exists():
            _make_secret(path)
        _wait_for(path)
        is_remote = "://" in str(path)
        return _checked(path.read_bytes() if is_remote else read_regular(Path(path), MAX_SECRET_BYTES), str(path))
    except (OSError, ImportError) as error:
        raise UserError(f"{path}: cannot store the run's secret there: {error}") from error


def _make_secret(path: epath.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = os.urandom(32).hex().encode()
    if "://" not in str(path):
        write_atomically(Path(path), secret, 0o600)
        return
    new = path.with_name(f"secret-{os.getpid()}")  # so that no process reads a partial secret
    new.write_bytes(secret)
    new.rename(path)


def _wait_for(path: epath.Path) -> None:
    until = time.monotonic() + JOIN_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise UserError(
                f"{path}: process 0 writes the run's secret there, but this process did not find it within "
                f"{JOIN_SECONDS} s: give a --checkpoint-dir that all hosts share, or --secret-file FILE"
            )
        time.sleep(0.1)


def _read_secret(path: Path) -> bytes:
    name = f"--secret-file {path}"
    with refusing(name), open_regular(path) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise UserError(f"{name}: other users can read it: `chmod 600` it")
        return _checked(file.read(MAX_SECRET_BYTES), name)


def _checked(secret: bytes, where: str) -> bytes:
    secret = secret.strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise UserError(
            f"{where}: the secret has {len(secret)} bytes: use at least {MIN_SECRET_BYTES}, such as from "
            "`openssl rand -hex 32`"
        )
    return secret
