"""The engine's side of `shardtui profile` with files. Uses no device."""

from pathlib import Path

import msgspec

from ..analysis.hlo import parse
from ..base.invalid import Invalid
from ..spec.topology import load_topology
from ..wire.stdout import print_answer
from .breakdown import read_breakdown
from .predicted import predicted_breakdown


def profile(trace: str, mesh: str = "{}", hlo: str = "") -> None:
    """Prints the `StepBreakdown` of a trace as JSON. Raises Invalid if it cannot be read.

    `trace`: an `.xplane.pb`, or a directory that contains some, of which the newest is read. `mesh`: axis to size, as
    JSON. `hlo`: a file with the program's text, or empty.
    """
    text = _text(hlo, f"--hlo {hlo}") if hlo else ""
    print_answer(read_breakdown(_file(Path(trace)), _mesh(mesh), text))


def predict(hlo: str, mesh: str, topology: str) -> None:
    """Prints the `StepBreakdown` of a program that never ran as JSON. Raises Invalid if there is none.

    `hlo`: a file with the text of a program that the TPU compiler made for the slice `topology`. `mesh`: as above.
    """
    target = load_topology(topology)
    try:
        module = parse(_text(hlo, hlo))
    except ValueError as error:
        raise Invalid(f"{hlo}: {error}") from error
    print_answer(predicted_breakdown(module, _mesh(mesh), target))


def _text(file: str, name: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{name}: cannot be read: {error}") from error


def _mesh(mesh: str) -> dict[str, int]:
    return msgspec.json.decode(mesh, type=dict[str, int])


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = list(path.rglob("*.xplane.pb"))
    if not found:
        raise Invalid(f"{path}: no .xplane.pb below it: give a trace that the profiler has written")
    return max(found, key=lambda file: file.stat().st_mtime)
