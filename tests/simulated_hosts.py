"""Hosts that are simulated on this machine: each has a run directory of its own, and all share their checkpoints."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .conftest import SETTINGS, SHARDTUI
from .distributed.test_hosts import free_port

Event = dict[str, Any]


class Hosts:
    def __init__(self, folder: Path, count: int, *options: str, settings: Sequence[str] = SETTINGS) -> None:
        self.folder, self._count = folder, count
        self._port = free_port()
        self._options = (*settings, *options)
        self.supervisors: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, home: int | None = None) -> None:
        """Starts, or starts again, the supervisor of a host; in the directories of the host `home`."""
        member = (f"--coordinator=localhost:{self._port}", f"--num-processes={self._count}", f"--process-id={rank}")
        command = [*SHARDTUI, "engine", "--run=big", "--supervise", *member, *self._options]
        environment = os.environ | {
            "XDG_STATE_HOME": str(self.folder / f"host-{rank if home is None else home}"),
            "SHARDTUI_SECRET": "a secret of this test alone",
        }
        with (self.folder / f"host-{rank}.log").open("a") as log:
            self.supervisors[rank] = subprocess.Popen(
                [*command, f"--checkpoint-dir={self.folder}/shared"], stdout=log, stderr=log, env=environment, text=True
            )

    def kill(self, rank: int) -> None:
        """Ends a host: its supervisor is killed, with which its engine ends."""
        self.supervisors.pop(rank).kill()

    def history(self, rank: int) -> list[Event]:
        return _events(self.folder / f"host-{rank}/shardtui/runs/big/events.jsonl")

    def shared_history(self) -> list[Event]:
        """Returns the events that the host of process 0 has published, also before another host became the first."""
        return _events(self.folder / "shared/big/supervisors/events.jsonl")

    def said(self, rank: int) -> str:
        return (self.folder / f"host-{rank}.log").read_text()


def _events(path: Path) -> list[Event]:
    """Without a line that is being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses_by_step(events: list[Event]) -> dict[int, float]:
    return {
        event["step"] - len(event["losses"]) + 1 + index: loss
        for event in events
        if event["type"] == "StepsDone"
        for index, loss in enumerate(event["losses"])
    }
