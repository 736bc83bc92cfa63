"""Which values processes of a run accept from each other, and when a run needs a secret."""

import os
import stat
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.distributed.seal import VARIABLE, Forged, Seal, given_secret, require_secret, shared_secret
from shardtui.engine.spec.config import CheckpointConfig, Membership
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import tiny_config

SECRET = b"the secret of a run"
KEY = "broadcast/0/7"
SHARED = tiny_config(checkpoints=CheckpointConfig(directory="/shared"))


EARLIER, SEAL = (Seal(SECRET).renewed([nonce, b"1" * 16]) for nonce in (b"0" * 16, b"2" * 16))
"""Every process contributes a nonce, so that every start has another seal."""


def test_a_sealed_value_can_be_read_under_its_key() -> None:
    for value in (b"value", b""):
        assert SEAL.open(KEY, SEAL.seal(KEY, value)) == value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"value",
        b"value" * 20,
        SEAL.seal("broadcast/0/8", b"value"),
        SEAL.seal(f"{KEY}v", b"alue")[:-4] + b"value",  # bytes cannot move between key and value
        EARLIER.seal(KEY, b"value"),
        Seal(b"the secret of another").seal(KEY, b"value"),
        Seal(b"").seal(KEY, b"value"),
        SEAL.seal(KEY, b"value") + b"!",
        SEAL.seal(KEY, b"value")[:-1],
    ],
)
def test_any_other_value_is_forged_and_its_text_is_not_shown(value: bytes) -> None:
    with pytest.raises(Forged, match="broadcast/0/7: ") as forged:
        SEAL.open(KEY, value)
    assert "value in the coordinator's store is not sealed with the run's secret" in str(forged.value)
    assert "valuevalue" not in str(forged.value)


def test_fingerprints_depend_on_text_and_secret() -> None:
    found = [Seal(secret).fingerprint(text) for secret in (SECRET, b"another secret") for text in ("0", "1", "0")]
    assert found[:3] == [found[0], found[1], found[0]]
    assert len(set(found)) == 4


def test_the_first_process_makes_a_secret_that_stays_with_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    made = shared_secret(directory, tiny_config(), "localhost:1", is_first=True)
    assert len(made) == 64
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    for is_first in (True, False):
        assert shared_secret(directory, tiny_config(), "localhost:1", is_first) == made


def test_hosts_that_share_checkpoints_share_the_secret(tmp_path: Path) -> None:
    config = tiny_config(checkpoints=CheckpointConfig(directory=str(tmp_path)))
    made = shared_secret(RunDirectory(tmp_path / "here/tiny-1"), config, "host-0:1", is_first=True)
    assert shared_secret(RunDirectory(tmp_path / "there/tiny-1"), config, "host-0:1", is_first=False) == made
    assert (tmp_path / "tiny-1/secret").exists()


@pytest.mark.parametrize("coordinator", ["host-0:9876", "0.0.0.0:1", "10.0.0.1:1", "[::]:1", None])
def test_a_run_that_other_hosts_reach_needs_a_secret(
    coordinator: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError) as refused:
        require_secret(coordinator, Membership(), tiny_config())
    assert all(way in str(refused.value) for way in ("--checkpoint-dir", "--secret-file", VARIABLE, "--insecure"))
    require_secret(coordinator, Membership(insecure=True), tiny_config())
    require_secret(coordinator, Membership(), SHARED)
    for local in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/x"):
        require_secret(local, Membership(), tiny_config())
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("0123456789abcdef\n")
    require_secret(coordinator, Membership(secret_file=str(file)), tiny_config())
    assert given_secret(Membership(secret_file=str(file))) == b"0123456789abcdef", "without the line's end"
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")
    require_secret(coordinator, Membership(), tiny_config())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: (path.write_text("x" * 32), path.chmod(0o644)), "other users can read it: `chmod 600`"),
        (lambda path: (path.touch(0o600), path.write_text("short")), "the secret has 5 bytes: use at least 16"),
        (lambda path: os.mkfifo(path, 0o600), "cannot be read: a FIFO, not a regular file"),
        (lambda path: path.mkdir(0o700), "cannot be read: a directory, not a regular file"),
    ],
)
def test_an_invalid_secret_file_is_refused(tmp_path: Path, make: object, problem: str) -> None:
    path = tmp_path / "secret"
    make(path)  # type: ignore[operator]
    with pytest.raises(UserError, match=problem):
        given_secret(Membership(secret_file=str(path)))
