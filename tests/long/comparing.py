"""`shardtui compare` when it is interrupted, when presets are too large, and when its engine is killed.

`python -m pytest -n0 tests/long/comparing.py`, about a minute and a half on two cores.
"""

import json
import os
import signal
from pathlib import Path

from tests.conftest import SETTINGS
from tests.tui.test_cli import run
from tests.tui.test_comparing import compared, files, until_it_says


def test_presets_that_are_too_large_do_not_stop_the_comparison(home: Path) -> None:
    """The run cannot begin with the first preset, and the switch to the last one fails."""
    result = run(
        "compare",
        "tp",
        "dp",
        "fsdp-tp8",
        "--device-memory=650e3",
        "--steps=2",
        "--json",
        *SETTINGS,
        f"--data={__file__}",
    )
    assert result.returncode == 1
    rows = {row["preset"]: row for row in json.loads(result.stdout)["rows"]}
    assert [(name, row["verdict"]) for name, row in rows.items()] == [
        ("dp", "fits"),
        ("tp", "too large"),
        ("fsdp-tp8", "too large"),
    ]
    for name in ("tp", "fsdp-tp8"):
        assert rows[name]["problems"][0].startswith(f"{name}: a step needs 676 kB per device")
        assert rows[name]["estimate"]["bytes_sent"] > 0
    assert rows["dp"]["measured"]["steps"] == 2
    assert files(home / "state") == []


def test_a_killed_engine_is_replaced(home: Path) -> None:
    process = compared("dp", "tp", "--steps=400", "--json")
    until_it_says(process, "tp (1 of 2): ")
    (lock,) = (home / "state").rglob("lock")
    os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    rows = {row["preset"]: row for row in json.loads(output)["rows"]}
    assert "ended by SIGKILL" in rows["tp"]["problems"][0]
    assert (rows["tp"]["measured"], rows["dp"]["measured"]["steps"], rows["dp"]["problems"]) == (None, 400, [])
    assert f"its log is in {lock.parent}" in errors
    assert [folder.name for folder in (home / "state/shardtui/runs").iterdir()] == ["compare-1"]


def test_an_interrupted_comparison_prints_what_was_measured(home: Path) -> None:
    process = compared("dp", "tp", "--steps=100000")
    until_it_says(process, "tp (1 of 2): ")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "✗ dp: not measured: interrupted" in output
    assert "\ntp: " in output, "the recommendation"
    assert files(home / "state") == []
