"""Another user of the machine reaches the coordinator's port over TCP: nothing they write is accepted."""

import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.config import RunConfig, UserModel
from shardtui.engine.wire.hosts import HostStatus

from ..attacker import Attacker
from ..conftest import PACED, SHARDTUI, tiny_config
from ..processes import awaited
from .test_hosts import Engines, coordinator, engines, history, named, pair, train

__all__ = ["coordinator", "engines"]

FLOOD_BYTES = 50_000_000
LOOPBACK = ("0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:")


def hostile_config(folder: Path) -> tuple[RunConfig, Path]:
    marker, file = folder / "marker", folder / "model.py"
    file.write_text(f"open({str(marker)!r}, 'w').close()\ndef make(rngs): ...\n")
    return tiny_config(model=UserModel(reference=f"{file}:make", directory=str(folder))), marker


def answer_of(value: object) -> bytes:
    """Encodes a decision as versions without seals did."""
    return msgspec.msgpack.encode({"value": value, "problems": None})


@pytest.mark.slow
def test_values_planted_before_the_run_are_reported_and_no_code_is_run(
    home: Path, engines: Engines, coordinator: str
) -> None:
    config, marker = hostile_config(home)
    attacker = Attacker(coordinator)
    both = pair(engines, coordinator)
    attacker.wait_for_service()
    while any(engine.poll() is None for engine in both):
        try:
            for number in range(12):
                attacker.write(f"broadcast/0/{number}", answer_of(config))
            attacker.write("welcome", answer_of([b"", b""]))
            attacker.write("gather/0/1", msgspec.msgpack.encode(config))
        except Exception:  # the service ends with the run
            time.sleep(0.1)
    said = [engine.stderr.read() for engine in both if engine.stderr]
    problems = [problem for event in named(history(home, "hosts"), "Failed") for problem in event["problems"]]
    assert any("is not sealed with the run's secret" in text for text in (*said, *problems))
    assert not any(str(marker.parent / "model.py") in text for text in (*said, *problems))
    assert not marker.exists()
    assert not named(history(home, "hosts"), "StepsDone")


@pytest.mark.slow
def test_a_run_under_attack_leaks_nothing_continues_and_ends_only_at_a_forged_agreement(
    home: Path, engines: Engines, coordinator: str
) -> None:
    secrets = home / "a-secret-place"
    secrets.mkdir()
    (secrets / "text.txt").write_text("the text of the corpus " * 1000)
    both = pair(
        engines, coordinator, f"--data={secrets}/text.txt", "--set=learning_rate=0.00012345", "--checkpoint-every=5"
    )
    awaited(lambda: named(history(home, "hosts"), "StepsDone"))
    attacker = Attacker(coordinator)
    attacker.wait_for_service()
    read = b"".join(value for folder in ("broadcast", "gather", "status") for value in attacker.read(folder).values())
    assert read
    assert not [word for word in (b"a-secret-place", b"0.00012345", b"learning_rate", b"nano") if word in read]
    secret = next((home / "state").rglob("secret"))
    assert secret.read_bytes() not in read
    stop = HostStatus(process=1, step=0, bytes_in_use=0, is_stopping=True, problem="<told to the operator>", beat=10**9)
    recorded = attacker.read("status")["status/0"]
    for forged in (msgspec.msgpack.encode(stop), recorded, b"", b"x" * 100):
        for number in (0, 1, 9):
            attacker.write(f"status/{number}", forged)
        time.sleep(1.5)
    flood(attacker)
    done = named(history(home, "hosts"), "StepsDone")[-1]["step"]
    awaited(lambda: named(history(home, "hosts"), "StepsDone")[-1]["step"] > done + 3)
    assert "<told to the operator>" not in str(history(home, "hosts"))
    newest = max(int(key.rpartition("/")[2]) for key in attacker.read("broadcast"))
    for number in range(newest + 1, newest + 200):
        attacker.write(f"broadcast/0/{number}", answer_of({"commands": [{"type": "Stop"}], "stride": 1}))
    assert [engine.wait(timeout=240) for engine in both] == [1, 1]
    (failed,) = named(history(home, "hosts"), "Failed")
    assert "is not sealed with the run's secret" in failed["problems"][0]
    assert "broadcast/0/" in failed["problems"][0]
    kept = named(history(home, "hosts"), "CheckpointsKept")[-1]["checkpoints"][-1]["step"]
    resumed = train("--resume=hosts", f"--steps={kept + 7}")
    assert named(resumed, "Restored")[0]["step"] in (kept, kept + 5)  # committed, but the run ended before it said so


def flood(attacker: Attacker) -> None:
    for number in range(FLOOD_BYTES // 1_000_000):
        attacker.write(f"status/{10 + number}", b"x" * 1_000_000)


@pytest.mark.core
def test_processes_with_different_secrets_do_not_train_together(home: Path, engines: Engines, coordinator: str) -> None:
    for number in range(2):
        (home / f"secret-{number}").touch(0o600)
        (home / f"secret-{number}").write_text(f"{number}" * 32)
    both = pair(engines, coordinator, own=[(f"--secret-file={home}/secret-{number}",) for number in range(2)])
    assert 0 not in [engine.wait(timeout=90) for engine in both]
    (failed,) = named(history(home, "hosts"), "Failed")
    assert "hello/1: this value" in failed["problems"][0]


def test_a_coordinator_that_other_hosts_reach_is_refused_without_a_secret(home: Path, engines: Engines) -> None:
    engine = engines("--run=a", "--coordinator=host-0:9876", "--num-processes=2", "--process-id=1")
    assert engine.wait(timeout=240) == 2
    assert engine.stderr
    assert "other hosts can reach it, and this run has no secret" in engine.stderr.read()


@pytest.mark.slow
def test_processes_of_one_machine_listen_only_on_loopback_and_a_private_socket(home: Path) -> None:
    train_two = [*SHARDTUI, "train", *PACED, "--run=hosts", "--processes=2", "--steps=1000000"]
    with subprocess.Popen(train_two, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        awaited(lambda: named(history(home, "hosts"), "StepsDone"))
        hosts = named(history(home, "hosts"), "EngineReady")[0]["hosts"]
        listening = [address for host in hosts for address in listening_of(host["pid"])]
        command.terminate()
    assert listening, "collectives of CPU processes are over TCP"
    assert all(address.startswith(LOOPBACK) for address in listening)
    assert not list(Path(os.environ["SHARDTUI_RUNTIME_DIR"]).glob("hosts-*-????")), "the coordinator's socket is gone"


def listening_of(pid: int) -> list[str]:
    """Returns the TCP addresses a process listens on, in the kernel's format: hexadecimal, each word reversed."""
    inodes = {
        str(path.readlink()).removeprefix("socket:[").removesuffix("]")
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if path.is_symlink()
    }
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return [line[1] for line in lines if len(line) > 9 and line[3] == "0A" and line[9] in inodes]
