"""The memory of this machine, and of a container on it."""

from pathlib import Path

import pytest
from shardtui.engine.base import machine


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.machine_memory()
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 300000\n")
    for limit, total, available in (("1000000", 1_000_000, 400_000), ("500000", 500_000, 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert (machine.machine_memory(), machine.available_memory()) == (total, available)
    for unlimited in ("max\n", str(2**62)):
        (tmp_path / "memory.max").write_text(unlimited)
        assert machine.machine_memory() >= whole
        assert 400_000 < machine.available_memory() <= whole
