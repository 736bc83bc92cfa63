"""The tables of the docs are what was recorded, and a suite records what it measured."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tables import MARKED, drawn, pair

from . import table
from .faults.run import LONG
from .table import Table

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def drawing(docs: Path, *arguments: str, script: str = "tables") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, docs / f"{script}.py", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("*.svg", "__pycache__"))


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize("script", ["tables", "schemas", "reference"])
def test_pages_and_schemas_are_what_was_recorded_and_what_the_code_says(script: str) -> None:
    checked = drawing(DOCS, "--check", script=script)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changed", "old", "new", "page"),
    [
        ("data/faults/kills.json", '"SIGKILL in a save", 50, 50', '"SIGKILL in a save", 50, 49', "faults"),
        ("data/bench/start.json", '7, "≤", 50,', '7, "≤", 40,', "benchmarks"),
        ("measurements.md", "2.1e-07 · 2.8e-07", "2.1e-07 · 2.9e-07", "measurements"),
        ("planning-measured.md", "| dp | batch_size=64 |", "| dp | batch_size=65 |", "planning-measured"),
    ],
)
def test_a_changed_figure_is_found_and_drawn(copied: Path, changed: str, old: str, new: str, page: str) -> None:
    replace(copied / changed, old, new)
    checked = drawing(copied, "--check")
    assert checked.returncode == 1
    assert checked.stderr == f"{page}.md differs from docs/data: run `python docs/tables.py`\n"
    assert drawing(copied).returncode == 0
    assert drawing(copied, "--check").returncode == 0


def test_what_is_on_no_page_and_a_table_without_an_end_are_named(copied: Path) -> None:
    replace(copied / "faults.md", "<!-- table: faults/soak -->", "")
    checked = drawing(copied, "--check")
    assert "docs/data/faults/soak.json is on no page: add <!-- table: faults/soak -->" in checked.stderr
    assert checked.returncode == 1
    replace(copied / "hosts.md", "<!-- end -->", "")
    was = (copied / "hosts.md").read_text()
    assert "hosts.md: a table has no <!-- end -->" in drawing(copied).stderr
    assert (copied / "hosts.md").read_text() == was


def test_every_suite_of_faults_has_a_table() -> None:
    shown = {found[2] for found in MARKED.finditer((DOCS / "faults.md").read_text())}
    assert {f"faults/{name}" for name in LONG} <= shown


def test_commands_are_there() -> None:
    for path in (DOCS / "data").rglob("*.json"):
        for entry in json.loads(path.read_text()).values():
            script = re.fullmatch(r"python (tests/\S+)( .*)?|shardtui plan .*", entry["command"])
            assert script and (not script[1] or (ROOT / script[1]).exists()), entry["command"]


@pytest.mark.core
def test_suites_import_what_is_there() -> None:
    paths = [path for folder in ("bench", "faults", "long") for path in (ROOT / "tests" / folder).glob("*.py")]
    names = [f"tests.{path.parent.name}.{path.stem}" for path in paths]
    code = f"import importlib; [importlib.import_module(name) for name in {names}]"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COLUMNS = {"injected": "", "times": "{:,}", "survived": "{:,}", "seen": "{}"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "DATA", tmp_path)
    monkeypatch.setattr("docs.tables.DATA", tmp_path)
    return tmp_path


def recorded(monkeypatch: pytest.MonkeyPatch, python: str, *rows: tuple[object, ...]) -> None:
    monkeypatch.setattr(table, "python", lambda: python)
    with Table("faults/x", COLUMNS, records=True, command="python x.py") as made:
        for row in rows:
            made.add(*row)


def test_recording_replaces_the_figures_of_one_package_set(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, survived in (("3.11", 2000), ("3.12", 1999), ("3.11", 1998)):
        recorded(monkeypatch, name, ("a bit", 2000, survived, None))
    sets = json.loads((data / "faults/x.json").read_text())
    assert {name: entry["rows"] for name, entry in sets.items()} == {
        "3.11": [["a bit", 2000, 1998, None]],
        "3.12": [["a bit", 2000, 1999, None]],
    }
    assert sets["3.11"].keys() == {"command", "date", "python", "versions", "machine", "columns", "rows"}
    assert "| a bit | 2,000 | 1,998 · 1,999 of 2,000 |  |" in drawn("faults/x")


def test_what_one_package_set_has_alone_names_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, "3.11", ("a bit", 9, 9, None))
    recorded(monkeypatch, "3.12", ("a bit", 9, 0, "lost"), ("a byte", 9, 9, None))
    assert "| a bit | 9 | 3.11: all<br>3.12: 0 of 9 | 3.12: lost |" in drawn("faults/x")
    assert "| a byte | 3.12: 9 | 3.12: all |  |" in drawn("faults/x")


def test_nothing_is_recorded_unless_asked_or_where_a_suite_fails(data: Path) -> None:
    with Table("x", {"a": ""}, command="x") as unasked:
        unasked.add(1)
    with pytest.raises(RuntimeError), Table("x", {"a": ""}, records=True, command="x") as failing:
        failing.add(1)
        raise RuntimeError
    assert list(data.iterdir()) == []


def test_a_cell_has_the_figures_of_both_package_sets_where_they_differ() -> None:
    assert pair({"3.11": "4.83 GB", "3.12": "4.69 GB"}) == "4.83 · 4.69 GB"
    assert pair({"3.11": "all", "3.12": "all"}) == "all"
    assert pair({"3.11": "1 went on", "3.12": "1 ended"}) == "3.11: 1 went on<br>3.12: 1 ended"
    assert pair({"3.11": "jax 0.10.2", "3.12": "jax 0.12.0.1"}) == "jax 0.10.2 · 0.12.0.1"
    assert pair({"3.11": "1, 2, 3, 4, 5, 6", "3.12": "2, 3, 4, 5, 6, 7"}).count("<br>") == 1
