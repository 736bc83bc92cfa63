"""`shardtui explain` and `why`: why values are laid out as they are, and why collectives are needed."""

import argparse
import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.atomic_write import writing
from ...engine.base.output import show
from ...engine.base.untrusted import read_struct
from ...engine.base.user_error import UserError, suggestion
from ...engine.explain.explanation import CompiledProgram, Explanation, ProgramRequest, Rematerialization, StepRequest
from ...engine.spec.model_choice import user_model
from ...engine.spec.topology import load_topology
from ...engine.wire.descriptions import MeshInfo
from ..client.engine_client import ask_engine
from ..state import board_rows
from ..state.explanation_diff import changes, numbered
from ..state.explanation_words import COST, compiled_bytes, cost_caveats, differences, memory_moves, program_row
from ..state.origin_pages import HEAD, Known, TriedPage, layout_lines, lines
from ..state.tables import ESTIMATED_COLLECTIVES, VALUES
from ..state.tried_rules import EXAMPLES, read_rule
from ..terminal import FAILED, FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import plain_table, right, table_console, table_of
from .options import add_json_option, add_step_options
from .profile_report import peak_tables
from .run import has_terminal, run_app, user_keymap
from .run_config import new_config
from .values import mesh

ESTIMATE = "an estimate by Shardy's passes, not compiled: the compiler may choose other collectives"


class ExplanationDiff(Struct, frozen=True, kw_only=True):
    """Changes in a program since an explanation of it was saved."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    program: str
    """`FILE.py:FUNCTION`."""
    changes: list[str]
    """One line for each change of a layout, an origin or a collective; empty if nothing changed."""


def explain_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "program",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns what jax.jit(f).lower(…) or .trace(…) gives, or a pair of "
        "jax.jit(f) and a tuple of its abstract arguments",
    )
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="print the whole chains of the values and collectives with this in their name or source",
    )
    add("--mesh", type=mesh, metavar="AXIS=SIZE,…", help="mesh of simulated devices to set, as by jax.set_mesh")
    add(
        "--topology",
        metavar="T",
        help="what it costs on TPU chips, such as v5p:4x4x4 or 2*v5p:4x4x4, or on hosts × GPUs: h100:4x8",
    )
    add("--compile", action="store_true", help="compile the program as well: its collectives and memory")
    add("--text", action="store_true", help="print tables, as without a terminal, in place of opening the UI")
    add("--save", metavar="FILE", help="write the answer to FILE, as JSON, to compare with later")
    add("--diff", dest="saved", metavar="FILE", help="show what changed since --save FILE; exit 1 if anything did")
    add_json_option(parser)


def explain_command(options: argparse.Namespace) -> int:
    if options.name and options.saved:
        raise UserError(f"{options.name}: --diff compares all of a program: leave the name out")
    function, _ = user_model(options.program, option="explain")
    if options.topology:
        load_topology(options.topology)  # which tells a wrong one at once
    program = ProgramRequest(
        function=function, mesh=options.mesh or {}, compiles=options.compile, topology=options.topology or ""
    )
    if options.name or options.save or options.saved or options.json or options.text or not has_terminal():
        return _print(program, options)
    from ..program_app import ProgramApp

    if problem := asyncio.run(run_app(ProgramApp(program, user_keymap()))):
        raise problem
    return FINE


def _print(program: ProgramRequest, options: argparse.Namespace) -> int:
    """Prints the explanation, or the whole chains of NAME, or what changed since `--diff`: then returns 1."""
    before = _saved(options.saved) if options.saved else None
    (found,) = ask_engine(Explanation, program.question, program)
    if options.save:
        _write(found, options.save)
    if before:
        report = ExplanationDiff(program=found.program, changes=changes(before, found))
        show(*([json_line(report)] if options.json else report.changes or ["no change"]))
        return FAILED if report.changes else FINE
    found = matching(found, options.name) if options.name else found
    if options.json:
        show(json_line(found))
    else:
        table_console().print(*(_chains if options.name else _tables)(clean(found)), sep="\n")
    return FINE


def matching(found: Explanation, name: str) -> Explanation:
    """Returns the values and collectives with `name` in their name, source or reasons. Raises UserError if none has."""
    values = [each for each in found.values if name in each.name or name in formatting.short_source(each.source)]
    collectives = [
        each
        for each in found.collectives
        if any(name in text for text in (each.kind, formatting.short_source(each.source), *each.because))
    ]
    if not values and not collectives:
        names = [value.name for value in found.values]
        raise UserError(
            f"{name}: no value and no source line of {found.program} has this in its name: "
            f"{suggestion(name, names)}names look like {', '.join(names[:3])}"
        )
    return msgspec.structs.replace(found, values=values, collectives=collectives)


def _saved(path: str) -> Explanation:
    return read_struct(path, Explanation, name=f"--diff {path}", advice="not what `shardtui explain … --save` wrote")


def _write(found: Explanation, path: str) -> None:
    text = msgspec.json.format(json_line(found), indent=1)
    with writing(f"--save {path}"):
        Path(path).write_text(f"{text}\n", encoding="utf-8")


def _tables(found: Explanation) -> list[RenderableType]:
    split = {label: value for label, value in numbered(found.values).items() if value.origin}
    heading = "values, and where each mesh axis comes from"
    values = [table_of(VALUES, split.items(), title=heading)] if split else []
    tables: list[RenderableType] = [*_title(found), *_cost(found), *values]
    if hidden := len(found.values) - len(split):
        tables.append(Text(f"and {formatting.counted(hidden, 'value')} that nothing splits: --json lists all", "dim"))
    return [
        *tables,
        _collectives(found),
        *map(Text, memory_moves(found)),
        *(_compiled(found.compiled) if found.compiled else ()),
    ]


def _chains(found: Explanation) -> list[RenderableType]:
    """Returns each value with its whole chains, link below link, then the collectives."""
    known = _known(found)
    shown: list[RenderableType] = [*_title(found)]
    for label in known.values:
        layout, *chains = layout_lines(label, known)
        shown += [Text(f"\n{label} {layout.text}", HEAD), *(Text(f"  {line.text}") for line in chains)]
    shown += ["", _collectives(found)] if found.collectives else []
    shown += map(Text, memory_moves(found))
    return [*shown, *(_compiled(found.compiled) if found.compiled else ())]


def _title(found: Explanation) -> list[RenderableType]:
    return [Text(f"{found.program}: {formatting.axes(found.mesh) or 'no mesh'}", "bold"), Text(ESTIMATE)]


def _cost(found: Explanation) -> list[RenderableType]:
    """The cost on a topology, and what fills the memory at the peak."""
    row = program_row(found)
    if row.cost is None:
        return []
    return [
        table_of(COST, [row], title=f"on {load_topology(found.topology).title}, per device, predicted"),
        *map(Text, [*cost_caveats(found), *filter(None, [board_rows.scheduled(row)])]),
        *peak_tables([row]),
    ]


def _collectives(found: Explanation) -> RenderableType:
    if found.has_none:
        return "no collectives"
    if not found.collectives:
        return "no collectives estimated, but the compiled program may have some"
    return table_of(ESTIMATED_COLLECTIVES, found.collectives, title="collectives, estimated")


def _compiled(found: CompiledProgram) -> list[RenderableType]:
    memory = plain_table("compiled program, per device", right("bytes"))
    for name, size in compiled_bytes(found).items():
        memory.add_row(name, formatting.size(size))
    replicated = [line for each in found.rematerializations for line in _rematerialized(each)]
    heading = [] if found.collectives is None else [Text("estimated and compiled collectives, per device", "bold")]
    return [memory, *replicated, *heading, *map(Text, differences(found))]


def _rematerialized(found: Rematerialization) -> list[RenderableType]:
    place = f" ({formatting.short_source(found.source)})" if found.source else ""
    before, after = formatting.layout(found.before, device=found.device), formatting.spec(found.after)
    title = f"{found.value} is replicated to get from {before} to {after}{place}: an involuntary full rematerialization"
    return [Text(title, "bold"), *(Text(f"  {reason}") for reason in found.because)]


class WhyReport(Explanation, frozen=True, kw_only=True):
    """The arrays and collectives of a preset's step whose name or source matches, and what other rules change."""

    tried: dict[str, list[str]]
    """The rules that were tried, by logical axis."""
    changes: list[str]
    """One line for each change of a layout, an origin or a collective with those rules; empty if none was tried."""


def why_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="part of an array's name or of a source line, such as mlp.up or blocks.py:104")
    add("--compile", action="store_true", help="compile the step as well: what the compiler chose")
    add(
        "--try",
        dest="tried",
        action="append",
        default=[],
        type=_rule,
        metavar="AXIS=MESHAXES",
        help=f"show what changes with another rule, {EXAMPLES}; repeatable",
    )
    add_step_options(parser)
    add_json_option(parser)


def why_command(options: argparse.Namespace) -> int:
    step = StepRequest(config=new_config(options), rules=dict(options.tried), compiles=options.compile)
    before, *after = ask_engine(Explanation, "why", step)
    found = matching(before, options.name)
    changed = [line for other in after for line in changes(before, other)]
    if options.json:
        show(json_line(WhyReport(**asdict(found), tried=step.rules, changes=changed)))
        return FINE
    table_console().print(*_chains(clean(found)), *(_tried(clean(before), clean(after[0])) if after else ()), sep="\n")
    return FINE


def _tried(before: Explanation, after: Explanation) -> list[RenderableType]:
    changed = lines(TriedPage("", after), _known(before))
    return ["", *(Text(line.text, HEAD if line.style == HEAD else "") for line in changed)]


def _known(found: Explanation) -> Known:
    return Known(found, (), MeshInfo(found.mesh, []))


def _rule(text: str) -> tuple[str, list[str]]:
    try:
        return read_rule(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(error.problems[0]) from error
