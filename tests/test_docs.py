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


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize("script", ["tables", "schemas", "reference"])
def test_pages_and_schemas_are_what_was_recorded_and_what_the_code_says(script: str) -> None:
    checked = drawing(DOCS, "--check", script=script)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_changed_figures_are_found_and_drawn_and_what_is_on_no_page_is_named(tmp_path: Path) -> None:
    copied = shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("*.svg", "__pycache__"))
    replace(copied / "data/bench/start.json", '"≤", 50,', '"≤", 40,')
    replace(copied / "data/faults/kills.json", '"SIGKILL in a save", 50, 50', '"SIGKILL in a save", 50, 49')
    replace(copied / "measurements.md", "2.1e-07 · 2.8e-07", "2.1e-07 · 2.9e-07")
    replace(copied / "planning-measured.md", "| dp | batch_size=64 |", "| dp | batch_size=65 |")
    checked = drawing(copied, "--check")
    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [
        f"{page}.md differs from docs/data: run `python docs/tables.py`"
        for page in ("benchmarks", "faults", "measurements", "planning-measured")
    ]
    assert (drawing(copied).returncode, drawing(copied, "--check").returncode) == (0, 0)
    replace(copied / "faults.md", "<!-- table: faults/soak -->", "")
    checked = drawing(copied, "--check")
    assert "docs/data/faults/soak.json is on no page: add <!-- table: faults/soak -->" in checked.stderr
    assert checked.returncode == 1
    replace(copied / "hosts.md", "<!-- end -->", "")
    was = (copied / "hosts.md").read_text()
    assert "hosts.md: a table has no <!-- end -->" in drawing(copied).stderr
    assert (copied / "hosts.md").read_text() == was


def test_every_suite_of_faults_has_a_table_and_every_table_a_command() -> None:
    shown = {found[2] for found in MARKED.finditer((DOCS / "faults.md").read_text())}
    assert {f"faults/{name}" for name in LONG} <= shown
    for path in (DOCS / "data").rglob("*.json"):
        for entry in json.loads(path.read_text()).values():
            script = re.fullmatch(r"python (tests/\S+)( .*)?|shardtui plan .*", entry["command"])
            assert script and (not script[1] or (ROOT / script[1]).exists()), entry["command"]


@pytest.mark.core
def test_suites_import_what_is_there() -> None:
    paths = [path for folder in ("bench", "faults", "long") for path in (ROOT / "tests" / folder).glob("*.py")]
    names = [f"tests.{path.parent.name}.{path.stem}" for path in paths]
    code = "import importlib, sys; sys.path.append('tests/long')"  # where a suite looks that is started
    code += f"; [importlib.import_module(name) for name in {names}]"
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
    assert [sets[name]["rows"] for name in sets] == [[["a bit", 2000, survived, None]] for survived in (1998, 1999)]
    assert sets["3.11"].keys() == {"command", "date", "python", "versions", "machine", "columns", "rows"}
    assert "| a bit | 2,000 | 1,998 · 1,999 of 2,000 |  |" in drawn("faults/x")
    recorded(monkeypatch, "3.11", ("a bit", 9, 9, None))
    recorded(monkeypatch, "3.12", ("a bit", 9, 0, "lost"), ("a byte", 9, 9, None))
    assert "| a bit | 9 | 3.11: all<br>3.12: 0 of 9 | 3.12: lost |" in drawn("faults/x")
    assert "| a byte | 3.12: 9 | 3.12: all |  |" in drawn("faults/x"), "what one has alone names it"


def test_nothing_is_recorded_unless_asked_or_where_a_suite_fails(data: Path) -> None:
    with Table("x", {"a": ""}, command="x") as unasked:
        unasked.add(1)
    with pytest.raises(RuntimeError), Table("x", {"a": ""}, records=True, command="x") as failing:
        failing.add(1)
        raise RuntimeError
    assert list(data.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "other", "cell"),
    [
        ("4.83 GB", "4.69 GB", "4.83 · 4.69 GB"),
        ("all", "all", "all"),
        ("1 went on", "1 ended", "3.11: 1 went on<br>3.12: 1 ended"),
        ("jax 0.10.2", "jax 0.12.0.1", "jax 0.10.2 · 0.12.0.1"),
        ("1, 2, 3, 4, 5, 6", "2, 3, 4, 5, 6, 7", "3.11: 1, 2, 3, 4, 5, 6<br>3.12: 2, 3, 4, 5, 6, 7"),
    ],
)
def test_a_cell_has_the_figures_of_both_package_sets_where_they_differ(one: str, other: str, cell: str) -> None:
    assert pair({"3.11": one, "3.12": other}) == cell
