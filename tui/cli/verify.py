"""`shardtui verify`: every file and every array of a run's checkpoints against the digests written with them."""

import msgspec
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.wire.descriptions import CheckedInfo, Verification
from ...engine.wire.run_directory import RunDirectory
from ..client.engine_client import ask_engine
from ..terminal.clean import clean, json_line
from ..terminal.exit_codes import FAILED, FINE
from ..terminal.plain_console import plain_console

AS_WRITTEN = {
    "mix64": "every file and array is as it was written",
    "sum32": "every file is as it was written; arrays by an older version's 32-bit sums, which miss some changes",
}


def verify(directory: RunDirectory, as_json: bool) -> int:
    """1 where one is damaged."""
    answer = ask_engine("verify", str(directory.path))
    found = msgspec.json.decode(answer, type=Verification)
    if as_json:
        print(json_line(found))
    else:
        _print_table(clean(found), directory.name)
    return FAILED if any(checked.problems for checked in found.checkpoints) else FINE


def _print_table(found: Verification, run: str) -> None:
    if not found.checkpoints:
        print(f"run {run} has no checkpoint in {found.directory}")
        return
    right = (Column(name, justify="right") for name in ("step", "loss", "size"))
    table = Table("", *right, "saved under", "what was found")
    for checked in found.checkpoints:
        table.add_row(*_row(checked))
    plain_console().print(table)
    print(
        "files by SHA-256, arrays by 64-bit digests: one that changed by accident keeps its own with odds of 2⁻⁶⁴; no "
        "proof against intent"
    )
    if found.set_aside:
        print(f"set aside in {found.directory}: {', '.join(found.set_aside)}")


def _row(checked: CheckedInfo) -> list[Text]:
    info = checked.checkpoint
    loss = f"{info.loss:.4f}" if info and info.loss is not None else ""
    size, under = (figures.size(info.bytes), f"{info.preset}, {info.devices} devices") if info else ("", "")
    verdict = "\n".join(checked.problems) or (AS_WRITTEN[info.digest] if info else "")
    cells = ("✗" if checked.problems else "✓", f"{checked.step:,}", loss, size, under, verdict)
    return [Text(cell) for cell in cells]
