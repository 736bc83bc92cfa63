"""How long is a run without steps after a kill? `python tests/long/recovery.py [--kills 10] [--record]`.

SIGKILL of a random process of a supervised run of one machine, right after a checkpoint, until the first step that is
trained after it. Cold: with an empty compilation cache. Warm: with the one that the run has filled.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conftest import SETTINGS
from tests.faults.supervised import events, started
from tests.suite import versions
from tests.table import Table, arguments

COUNTS = (1, 2, 4)
MARKS = ("EngineStarted", "EngineReady", "PresetCompiled", "Restored", "StepDone")
"""What ends each part of a gap."""
COLUMNS = {
    **dict.fromkeys(("processes", "caches"), ""),
    "kills": "{}",
    **dict.fromkeys(("median", "worst", "an engine starts", "is ready", "has its program"), "seconds"),
    **dict.fromkeys(("has the checkpoint", "has trained a step"), "seconds"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    options = arguments(parser)
    print(f"{versions()}\n")
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, Table("long/recovery", COLUMNS, options.record) as table:
        os.environ |= {"SHARDTUI_RUNTIME_DIR": f"{folder}/run", "XDG_STATE_HOME": f"{folder}/state"}
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "JAX_PLATFORMS": "cpu"}
        for count in COUNTS:
            for is_warm in (False, True):
                cache = None if is_warm else Path(folder, "cache")
                gaps = list(_gaps(count, options.kills, cache, chance))
                whole = [gap[-1] for gap in gaps]
                parts = [[after - before for before, after in pairwise([0.0, *gap])] for gap in gaps]
                medians = [median(part) for part in zip(*parts, strict=True)]
                table.add(count, "warm" if is_warm else "cold", len(gaps), median(whole), max(whole), *medians)


def _gaps(count: int, kills: int, emptied: Path | None, chance: random.Random) -> Iterator[list[float]]:
    """Yields the seconds from each kill to each of `MARKS`. `emptied`: a cache that is deleted before each kill."""
    name = f"--run=recovery-{count}-{'cold' if emptied else 'warm'}"
    often = ("--steps=1000000", "--checkpoint-every=10", "--restarts=1000")
    run = started("--supervise", *SETTINGS, name, f"--processes={count}", *often)
    pids, seen, killed_at, is_saved = [0], dict[str, float](), 0.0, False
    for event in events(run):
        kind = event["type"]
        if kind == "EngineStarted":
            pids, is_saved = [event["pid"]], False
        elif kind == "EngineReady" and event["hosts"]:
            pids = [host["pid"] for host in event["hosts"]]
        elif kind == "CheckpointSaved":
            is_saved = True
        if killed_at and (seen or kind == "EngineStarted"):  # what comes before was on its way
            seen.setdefault(kind, time.monotonic() - killed_at)
        if killed_at and "StepDone" in seen:
            yield [seen[mark] for mark in MARKS]
            killed_at, seen, kills = 0.0, {}, kills - 1
        if not kills:
            break
        if not killed_at and is_saved:
            if emptied:
                shutil.rmtree(emptied, ignore_errors=True)
            os.kill(chance.choice(pids), signal.SIGKILL)
            killed_at = time.monotonic()
    run.terminate()
    run.communicate()


if __name__ == "__main__":
    main()
