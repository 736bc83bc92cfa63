"""Live switches and restores over 8, 4 and 1 devices: the losses equal those of a run without any."""

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etils import epath
from shardtui.engine.checkpoint.manifest import read_manifest

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

STEPS = 60
BOUND = 1e-5
STRAIGHT = (("--preset=fsdp",),)
SWITCHED = (
    ("--steps=15", "--preset=dp", "--switch=4:fsdp", "--switch=10:tp"),
    ("--steps=30", "--devices=4", "--preset=dp-tp2", "--switch=20:fsdp", "--switch=25:dp"),
    ("--steps=45", "--devices=1", "--preset=fsdp", "--switch=38:dp"),
    ("--steps=60", "--devices=8", "--preset=hsdp", "--switch=52:fsdp-tp2"),
)
INTERRUPTED = (("--preset=fsdp", "--steps=15"), ("--steps=30",), ("--steps=45",), ("--steps=60",))


def run(times: int) -> list[Row]:
    """Compares the losses for `times` seeds; the three runs of a seed run in parallel."""
    found: dict[str, list[Any]] = {"hopping": [], "interrupted": [], "digests": []}
    for seed in range(times):
        routes = {"straight": STRAIGHT, "hopping": SWITCHED, "interrupted": INTERRUPTED}
        with ThreadPoolExecutor() as pool:
            futures = {name: pool.submit(_losses, f"{name}-{seed}", seed, route) for name, route in routes.items()}
        losses = {name: future.result() for name, future in futures.items()}
        found["hopping"] += _differences(losses["straight"], losses["hopping"])
        found["interrupted"] += _differences(losses["straight"], losses["interrupted"])
        found["digests"] += _equal_digests(f"straight-{seed}", f"interrupted-{seed}")
    restores, switches = len(SWITCHED) - 1, str(SWITCHED).count("--switch")
    return [
        Row(
            f"{restores} saves and restores over 8, 4, 1 and 8 devices, {switches} switches: losses",
            STEPS * times,
            sum(difference <= BOUND for difference in found["hopping"]),
            f"within {BOUND:.0e}; largest relative difference {max(found['hopping'], default=1):.1e}",
        ),
        Row(
            f"{len(INTERRUPTED) - 1} saves and restores under one preset: losses",
            STEPS * times,
            found["interrupted"].count(0.0),
            "bitwise equal",
        ),
        Row("the same: arrays after the last step", len(found["digests"]), sum(found["digests"]), "digests equal"),
    ]


def _losses(name: str, seed: int, route: Sequence[Sequence[str]]) -> dict[int, float]:
    """Returns the loss of every step; the first leg begins the run, the others resume it."""
    losses: dict[int, float] = {}
    for number, leg in enumerate(route):
        begin = [f"--run={name}", f"--seed={seed}", f"--steps={STEPS}", *SETTINGS]
        arguments = [*(begin if number == 0 else [f"--resume={name}"]), *leg]
        command = [*SHARDTUI, "train", "--json", *arguments]
        events = map(json.loads, subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines())
        losses |= {event["step"]: event["loss"] for event in events if event["type"] == "StepDone"}
    return losses


def _differences(straight: dict[int, float], other: dict[int, float]) -> list[float]:
    """Returns the relative differences of the losses of steps that both have."""
    return [abs(straight[step] - other[step]) / straight[step] for step in straight.keys() & other.keys()]


def _equal_digests(*runs: str) -> list[bool]:
    """Returns, for each array of the last checkpoints, whether the digests are equal."""
    home = Path(os.environ["XDG_STATE_HOME"], "shardtui/runs")
    one, other = (read_manifest(epath.Path(home / name / "checkpoints" / str(STEPS))).digests for name in runs)
    return [one[name] == other.get(name) for name in one]
