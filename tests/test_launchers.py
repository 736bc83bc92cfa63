"""The launcher examples of the docs start a supervisor on every host, with a command line that shardtui accepts.

Their launchers are replaced by programs that run the same command here, once for each host; `shardtui` by one that
writes down its arguments, which the real command line then reads.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from shardtui.engine.spec.attempt import Supervision
from shardtui.engine.spec.config import Membership, Restart
from shardtui.tui.cli import engine
from shardtui.tui.cli.main import main

from .processes import awaited

EXAMPLES = Path(__file__).parent.parent / "docs/examples/launchers"
HOSTS = 4
FOR_EACH = f'for SLURM_PROCID in $(seq 0 {HOSTS - 1}); do export SLURM_PROCID; "${{command[@]}}"; done'
PROGRAMS = {
    "shardtui": 'line=$(printf "%q " "$@"); echo "$line" >> "$ARGUMENTS"',  # in one write: some run at the same time
    "ssh": 'shift; bash -c "$*"',
    "scontrol": "echo node-0; echo node-1",
    "srun": f"""while [[ $1 == --* ]]; do shift; done; command=("$@"); {FOR_EACH}""",
    "gcloud": f"""case "$*" in *describe*) echo "10.0.0.1;10.0.0.2;10.0.0.3;10.0.0.4"; exit;; esac
      command=(bash -c "${{@: -1}}"); {FOR_EACH}; wait""",
    "curl": 'echo "$SLURM_PROCID"',
    "nohup": '"$@" > /dev/null',
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, home: Path) -> list[list[str]]:
    found: list[list[str]] = []
    monkeypatch.setattr(engine.os, "execv", lambda _, command: found.append(command))
    return found


def arguments_of(script: str, *options: str, folder: Path) -> list[list[str]]:
    """Runs a script and returns the arguments of each `shardtui`, in the order of --process-id."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    written = folder / "arguments"
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "ARGUMENTS": str(written)}
    slurm = {"SLURM_JOB_NODELIST": "node-[0-3]", "SLURM_NTASKS": str(HOSTS)}
    command = ["bash", EXAMPLES / script, *options]
    subprocess.run(command, env=environment | slurm, cwd=folder, check=True, timeout=60)
    awaited(lambda: written.exists() and len(written.read_text().splitlines()) == HOSTS, "each process")
    lines = map(shlex.split, written.read_text().splitlines())
    return sorted(lines, key=lambda line: line[line.index("--process-id") + 1])


def checked(commands: list[list[str]], coordinator: str, started: list[list[str]]) -> list[Supervision]:
    """Returns what supervisors the command lines start, once it is clear that they belong to one run."""
    for arguments in commands:
        main(arguments)
    restarts, members, supervisions = zip(*(command[-3:] for command in started), strict=True)
    found = [msgspec.json.decode(member, type=Membership) for member in members]
    assert [(member.coordinator, member.processes, member.process) for member in found] == [
        (coordinator, HOSTS, rank) for rank in range(HOSTS)
    ]
    assert len(set(restarts)) == 1, "hosts have the same options"
    config = msgspec.json.decode(restarts[0], type=Restart).config
    assert config and (config.run, config.preset) == ("big", "fsdp")
    return [msgspec.json.decode(supervision, type=Supervision) for supervision in supervisions]


@pytest.mark.parametrize(
    ("script", "options", "coordinator", "least"),
    [
        ("slurm.sh", [], "node-0:9876", 2),
        ("ssh.sh", ["host-0", "host-1", "host-2", "host-3"], "host-0:9876", 2),
        ("tpu-vm.sh", ["pod", "zone"], "10.0.0.1:9876", None),
    ],
)
def test_scripts_start_a_supervisor_on_each_host(
    script: str, options: list[str], coordinator: str, least: int | None, tmp_path: Path, started: list[list[str]]
) -> None:
    commands = arguments_of(script, *options, folder=tmp_path)
    assert {found.min_processes for found in checked(commands, coordinator, started)} == {least}


def test_an_indexed_job_starts_a_supervisor_in_each_pod(started: list[list[str]]) -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    spec: dict[str, Any] = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (HOSTS, HOSTS, "Indexed")
    pod = spec["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"] == "big"
    assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": "big"}}
    (container,) = pod["containers"]
    assert container["name"] in json.dumps(spec["podFailurePolicy"])
    program, *arguments = container["command"]
    assert program == "shardtui"
    index = "$(JOB_COMPLETION_INDEX)"
    commands = [[part.replace(index, str(rank)) for part in arguments] for rank in range(HOSTS)]
    assert {found.wait_seconds for found in checked(commands, "big-0.big:9876", started)} == {120.0}
