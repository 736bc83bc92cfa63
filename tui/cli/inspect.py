"""`shardtui inspect` and `shardtui lint`: one preset's compiled step without training, and likely mistakes in it."""

import argparse
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.atomic_write import writing
from ...engine.base.output import printable, show
from ...engine.base.untrusted import read_text
from ...engine.base.user_error import UserError
from ...engine.explain.explanation import Explained
from ...engine.hlo.collectives import inventory
from ...engine.hlo.finding import Finding
from ...engine.hlo.megascale import WrongSlices, slices_of
from ...engine.hlo.module import MAX_TEXT_BYTES, parse
from ...engine.hlo.traffic import flows, overlapped_share
from ...engine.spec.config import RunConfig
from ...engine.spec.preset_reader import load_preset
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.descriptions import MemoryInfo
from ...engine.wire.events import Inspection
from ..client.engine_client import ask_engine
from ..state.step_words import overlap_words, pipeline_words
from ..state.tables import collective_columns
from ..terminal import FAILED, FINE
from ..terminal.clean import clean, json_line
from ..terminal.export import without_fonts
from ..terminal.plain_table import PIPE_WIDTH, plain_console, plain_table, right, table_console, table_of
from . import values
from .inspect_checkpoint import arrays_table, checkpoint_answer
from .inspect_report import (
    DiffReport,
    FindingReport,
    HloReport,
    all_arrays,
    diff_report,
    findings,
    inspect_report,
    lint_report,
)
from .options import add_json_option, add_step_options
from .profile_report import peak_table
from .run_config import new_config

MAX_ROWS = 500
"""Rows of the table of collectives, the largest first."""
MOST_ENDS = 3
"""Ends of chains in the table of findings; JSON has them all."""


def inspect_options(parser: argparse.ArgumentParser) -> None:
    add_step_options(parser)
    parser.add_argument("--diff", metavar="OTHER", help="show what differs from this other preset, or checkpoint")
    parser.add_argument(
        "--checkpoint",
        type=values.path,
        metavar="DIR",
        help="list the arrays of any Orbax checkpoint, gs://… included; no values are read",
    )
    parser.add_argument("--svg", metavar="FILE", help="write the answer as a picture")
    parser.add_argument("--hlo", metavar="FILE", help="list the collectives of any compiled program, from its HLO text")
    parser.add_argument("--mesh", type=values.mesh, metavar="AXIS=SIZE,…", help="with --hlo: the mesh of that program")
    add_json_option(parser)


def inspect_command(options: argparse.Namespace) -> int:
    if options.checkpoint is not None:
        report, tables, is_damaged = checkpoint_answer(options)
        print_answer(report, tables, options.json, options.svg)
        return FAILED if is_damaged else FINE
    if options.hlo or options.mesh:
        if not (options.hlo and options.mesh):
            raise UserError("--hlo FILE and --mesh AXIS=SIZE,… belong together: give both, or neither")
        return _inspect_hlo(options.hlo, options.mesh, options.json, options.svg)
    other, as_json, svg = options.diff, options.json, options.svg
    if other:
        load_preset(other)
    config = new_config(options)
    if svg:
        with writing(f"--svg {svg}"):  # a problem with its directory is reported before compiling
            os.stat(f"{Path(svg).parent}/.")  # noqa: PTH116 (a Path drops the dot that asks for a directory)
    if other:
        difference = diff_report(*ask_engine(Inspection, "inspect", config, other))
        return print_answer(difference, _diff_tables(clean(difference)), as_json, svg)
    if as_json:
        inspection, explained = _explained_inspection(config)
    else:
        (inspection,), explained = ask_engine(Inspection, "inspect", config), Explained()
    return print_answer(inspect_report(inspection, explained), _tables(clean(inspection)), as_json, svg)


def _inspect_hlo(path: str, mesh: dict[str, int], as_json: bool, svg: str | None) -> int:
    """Prints the collectives of a compiled module's text. Raises UserError."""
    count = math.prod(mesh.values())
    try:
        module = parse(read_text(path, MAX_TEXT_BYTES, f"--hlo {path}"))
        devices = module.partitions * slices_of(module, count)
        collectives = inventory(module, mesh) if devices == count else []
    except WrongSlices as error:
        raise UserError(
            f"--mesh {formatting.axes(mesh)}: the module does not fit it: {error}: give its own mesh"
        ) from error
    except ValueError as error:
        raise UserError(f"--hlo {path}: not the text of a compiled module: {error}") from error
    if devices != count:
        has = f"--mesh {formatting.axes(mesh)} has {formatting.counted(count, 'device')}"
        raise UserError(f"{has}, but the module was compiled for {devices}: give its own mesh")
    share = overlapped_share(flows(collectives))
    report = HloReport(mesh=mesh, collectives=collectives, overlapped_share=share)
    return print_answer(report, _traffic(collectives), as_json, svg)


def _explained_inspection(config: RunConfig) -> tuple[Inspection, Explained]:
    inspection, explained = ask_engine(msgspec.Raw, "inspect-origins", config)
    return msgspec.json.decode(inspection, type=Inspection), msgspec.json.decode(explained, type=Explained)


def print_answer(report: msgspec.Struct, tables: Sequence[RenderableType], as_json: bool, svg: str | None) -> int:
    if svg:
        console = plain_console(record=True, file=io.StringIO(), width=PIPE_WIDTH)
        console.print(Group(*tables))
        with writing(f"--svg {svg}"):
            Path(svg).write_text(without_fonts(console.export_svg(title="shardtui")), encoding="utf-8")
    if as_json:
        show(json_line(report))
    elif not svg:
        table_console().print(*tables, sep="\n")
    return FINE


def _tables(inspection: Inspection) -> list[RenderableType]:
    compiled, mesh = inspection.compiled, inspection.compiled.mesh
    device = inspection.devices[0]
    title = f"{compiled.preset}: {formatting.axes(mesh.axes)} on {len(inspection.devices)} × {device.kind}"
    title += f", {pipeline_words(compiled.pipeline)}" if compiled.pipeline else ""
    tables: list[RenderableType] = [Text(title, "bold"), arrays_table(all_arrays(inspection), mesh)]
    if inspection.inspected.problem:
        tables.append(Text(f"no gradients and activations: {inspection.inspected.problem}", "red"))
    if compiled.memory:
        tables.append(_memory_table(compiled.memory))
    if compiled.memory and compiled.at_peak:
        tables.append(peak_table(compiled.preset, compiled.at_peak, compiled.peak_buffers, compiled.memory.peak))
    tables += (
        _traffic(compiled.collectives)
        if compiled.collectives is not None
        else ["collectives: unknown, the compiled program cannot be read"]
    )
    found = findings(inspection)
    return [*tables, findings_table(found) if found else Text("no findings", "green")]


def _memory_table(memory: MemoryInfo) -> Table:
    table = plain_table("memory per device", right("predicted"))
    names = ["parameters", "moments", "variables", "scalars", "batch", "padding", "temporaries"]
    for name in names if memory.variables else [name for name in names if name != "variables"]:
        table.add_row(name, formatting.size(getattr(memory, name)))
    table.add_row("peak (arguments + outputs - aliased + temporaries)", formatting.size(memory.peak))
    return table


def _traffic(collectives: Sequence[CollectiveInfo]) -> list[RenderableType]:
    if not collectives:
        return ["no collectives"]
    found = flows(collectives)
    columns = "collectives", "over", right("times"), right("sent per device and step")
    sums = plain_table(*columns, right("overlapped"), title=", ".join(filter(None, ("traffic", overlap_words(found)))))
    for flow in found:
        share = overlapped_share([flow])
        sums.add_row(
            flow.kind,
            formatting.over(flow.axes, flow.network),
            formatting.times(flow.count),
            formatting.in_step(flow.sent),
            "–" if share is None else formatting.percent(share),
        )
    each = table_of(collective_columns(), map(clean, collectives[:MAX_ROWS]))
    hidden = len(collectives) - MAX_ROWS
    return [sums, each, Text(f"and {hidden:,} more, none larger: --json lists all")] if hidden > 0 else [sums, each]


def findings_table(found: Sequence[Finding]) -> Table:
    table = plain_table("code", "finding", "fix", title="findings", lines=True)
    for finding in found:
        ends = (finding.origin if isinstance(finding, FindingReport) else None) or ()
        fix = "\n".join([finding.fix, *(f"← {end}" for end in ends[:MOST_ENDS])])
        table.add_row(f"{finding.code}\n{finding.name}", Text(finding.message), Text(fix))
    return table


def _diff_tables(difference: DiffReport) -> list[RenderableType]:
    one, other = difference.preset, difference.other
    arrays = plain_table(
        "array", one, other, right(f"per device, {one}"), right(other), title="arrays with another layout"
    )
    for change in difference.arrays:
        arrays.add_row(
            Text(change.name),
            Text(formatting.spec(change.compiled_spec)),
            Text(formatting.spec(change.other_compiled_spec)),
            formatting.size(change.bytes_per_device),
            formatting.size(change.other_bytes_per_device),
        )
    columns = "collectives", "over", right(f"times, {one}"), right(other), right(f"sent per step, {one}"), right(other)
    moved = plain_table(*columns, title="traffic")
    for change in difference.collectives:
        times = map(formatting.times, (change.count, change.other_count))
        sizes = map(formatting.in_step, (change.bytes_sent, change.other_bytes_sent))
        moved.add_row(change.kind, formatting.over(change.axes, change.network), *times, *sizes)
    tables: list[RenderableType] = [arrays, moved]
    if difference.memory and difference.other_memory:
        memory = plain_table("memory per device, predicted", right(one), right(other))
        for name in ("parameters", "moments", "batch", "temporaries", "peak"):
            sizes = (formatting.size(getattr(side, name)) for side in (difference.memory, difference.other_memory))
            memory.add_row(name, *sizes)
        tables.append(memory)
    return tables


def lint_options(parser: argparse.ArgumentParser) -> None:
    add_step_options(parser)
    add_json_option(parser)


def lint_command(options: argparse.Namespace) -> int:
    """Prints likely mistakes in the layout; returns 0 without findings, 1 with some. Raises UserError."""
    config = new_config(options)
    inspection, explained = _explained_inspection(config)
    report = lint_report(inspection, explained)
    shown = clean(report).findings
    tables: list[RenderableType] = [findings_table(shown) if shown else Text(f"{config.preset}: no findings")]
    problems = filter(None, (inspection.inspected.problem, explained.problem))
    tables += [Text(printable(problem), "red") for problem in problems]
    print_answer(report, tables, options.json, None)
    return FAILED if shown else FINE
