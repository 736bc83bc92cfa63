"""`shardtui profile`: where the time of a step goes, in a run or in a trace."""

import argparse
import asyncio
import json
from pathlib import Path

from msgspec.structs import asdict

from ...engine.base import formatting
from ...engine.base.output import note, show
from ...engine.base.user_error import UserError
from ...engine.wire import run_directory
from ...engine.wire.commands import ProfileSteps
from ...engine.wire.events import Profiled, ProfileFailed, ProfileWriting, Profiling
from ...engine.wire.run_directory import RunDirectory
from ...engine.wire.step_breakdown import StepBreakdown
from ..client.engine_client import EngineClient, ask_engine
from ..state.alternative import Alternative, alternative
from ..state.interpreter import apply_all
from ..state.run_state import Phase, RunState
from ..state.run_summary import recorded
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import table_console
from .options import add_json_option
from .profile_report import ProfileReport, diff_tables, profile_diff, profile_tables
from .values import mesh, steps_to_trace


def profile_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run",
        metavar="RUN|TRACE",
        help="name of a run, or an .xplane.pb, or a directory with some: the newest; with --topology, HLO text",
    )
    add(
        "--steps",
        type=steps_to_trace,
        dest="profiled",
        default=5,
        metavar="N",
        help="steps to trace of a run that trains; default 5; of a run that has ended, its last profile is shown",
    )
    add("--diff", dest="other_run", metavar="OTHER", help="compare with another run or trace")
    add("--hlo", metavar="FILE", help="with TRACE: HLO text of its program; default: the text that the trace contains")
    add("--mesh", type=mesh, metavar="AXIS=SIZE,…", help="with TRACE or --topology: the program's mesh, to name axes")
    add(
        "--topology",
        metavar="T",
        help="the subject is the HLO text of a program compiled for this TPU slice, which never ran: predict where its "
        "time goes, by the compiler's estimates",
    )
    add_json_option(parser)


def profile_command(options: argparse.Namespace) -> int:
    """Prints the breakdown of a run, a trace or a program, or two side by side. Raises UserError if there is none."""
    subject, other = options.run, options.other_run
    (breakdown, tried), console = _breakdown(subject, options), table_console()
    if other is None:
        tables = profile_tables(subject, clean(breakdown), console.width, tried)
        report = ProfileReport(**asdict(breakdown))
    else:
        report = profile_diff(subject, breakdown, other, _breakdown(other, options)[0])
        tables = diff_tables(clean(report))
    if options.json:
        show(json_line(report))
    else:
        console.print(*tables, sep="\n")
    return FINE


def _breakdown(subject: str, options: argparse.Namespace) -> tuple[StepBreakdown, Alternative | None]:
    """Returns the breakdown, and of a run the preset to try."""
    is_run = any(directory.name == subject for directory in run_directory.all_runs())
    if "/" in subject or subject.endswith(".pb") or (Path(subject).exists() and not is_run):
        path, sizes = str(Path(subject).absolute()), json.dumps(options.mesh or {})
        question = ("predict", path, sizes, options.topology)
        if not options.topology:
            question = ("profile", path, sizes, options.hlo or "")
        (found,) = ask_engine(StepBreakdown, *question)
        return found, None
    directory = run_directory.find(subject)
    named = {"--hlo": options.hlo, "--mesh": options.mesh, "--topology": options.topology}
    if given := " and ".join(name for name, value in named.items() if value):
        raise UserError(f"{given}: only for files, but {subject} is a run, which knows its own program")
    if watched := directory.watched:
        raise UserError(watched.refusal)
    is_alive = directory.is_alive
    state = RunState() if is_alive else recorded(directory)
    event = asyncio.run(_requested(directory, options.profiled, state)) if is_alive else state.profiled
    if event is None:
        raise UserError(
            f"run {directory.name} has ended, and was never profiled: `shardtui train --resume {directory.name} "
            "--profile 5` trains on and does"
        )
    if event.breakdown is None:
        raise UserError(f"run {subject}: no breakdown of its profile: {event.problem}")
    tried = alternative(state, event.preset)
    return event.breakdown, tried and clean(tried)


async def _requested(directory: RunDirectory, steps: int, state: RunState) -> Profiled:
    """Requests a profile of a run that trains; applies its history to `state`. Raises UserError if there is none."""
    client = EngineClient(directory)
    has_asked = False
    async for events in client.events():
        apply_all(state, events)
        for event in events if has_asked else ():
            if isinstance(event, Profiled):
                return event
            if isinstance(event, ProfileFailed):
                raise UserError(event.line)
            if isinstance(event, Profiling | ProfileWriting):
                note(event.line)
        if not events and not has_asked:  # the history has ended
            if state.phase is Phase.PAUSED:
                raise UserError(f"run {directory.name} is paused: resume it, then profile it")
            has_asked = True
            await client.send(ProfileSteps(steps))
            note(f"profiling {formatting.counted(steps, 'step')} of {directory.name}, step {state.step:,}")
    raise UserError(f"run {directory.name} ended before its profile: {'; '.join(state.problems) or 'no more steps'}")
