"""The engine's side of `shardtui profile TRACE`. Uses no device."""

from pathlib import Path

import msgspec

from ..base.invalid import Invalid
from ..wire.stdout import print_answer
from .account import read_account


def profile(trace: str, mesh: str = "{}", hlo: str = "") -> None:
    """Prints the `Account` of a trace as JSON. Raises Invalid if it cannot be read.

    `trace`: an `.xplane.pb`, or a directory that contains some, of which the newest is read. `mesh`: axis to size, as
    JSON. `hlo`: a file with the program's text, or empty.
    """
    try:
        text = Path(hlo).read_text(encoding="utf-8") if hlo else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--hlo {hlo}: cannot be read: {error}") from error
    print_answer(read_account(_file(Path(trace)), msgspec.json.decode(mesh, type=dict[str, int]), text))


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = list(path.rglob("*.xplane.pb"))
    if not found:
        raise Invalid(f"{path}: no .xplane.pb below it: give a trace that the profiler has written")
    return max(found, key=lambda file: file.stat().st_mtime)
