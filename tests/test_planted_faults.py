"""tests/long/planted.py puts faults into the product; here, whether the lines are still there that they change."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_each_planted_fault_changes_one_place():
    faults = tomllib.loads((ROOT / "tests/long/planted_faults.toml").read_text())["faults"]
    counts = {fault["name"]: (ROOT / fault["file"]).read_text().count(fault["old"]) for fault in faults}
    assert len(counts) == 30 and set(counts.values()) == {1}, counts
    near = {name for fault in faults for name in fault["near"]}
    assert not [name for name in near if not (ROOT / "tests" / name).exists()]
