"""`shardtui doctor`: checks a machine, and with `--train` that training works on its devices."""

import argparse
import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer

from msgspec.structs import replace
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.advice import last_words
from ...engine.base.atomic_write import write_atomically
from ...engine.base.directories import state_directory
from ...engine.base.encoding import encode_json
from ...engine.base.output import show
from ...engine.base.processes import exit_words
from ...engine.base.untrusted import decode, read_struct
from ...engine.base.user_error import UserError
from ...engine.wire.checkup import Check, Checkup, Examination, examined
from ...engine.wire.engine_command import engine_command
from ..client.remote_client import output_of
from ..terminal import FAILED, FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import plain_console, plain_table, right, table_console
from .doctor_training import LONGEST_SECONDS, TrainingChecks
from .options import add_device_options, add_json_option
from .runs import configured_hosts

ALL_HOSTS = "on a slice of several hosts, jax finds devices only while it starts on all of them: run it on each at once"
MOST_SKEW_SECONDS = 1.0
LEAST_SIZE = (80, 24)
STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}
MAX_REPORT_BYTES = 2**20


def doctor_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--train", action="store_true", help="also compute and train on the devices, in less than three minutes")
    add("--compare", type=Path, metavar="FILE", help="show the differences from this report, of another machine or day")
    add_device_options(parser, has_memory=False)
    add_json_option(parser)


def doctor_command(options: argparse.Namespace) -> int:
    other = options.compare and read_struct(options.compare, Checkup, MAX_REPORT_BYTES)
    if options.devices is not None and options.devices < 1:
        raise UserError(f"--devices {options.devices}: give at least 1")
    examination = Examination(devices=options.devices, platform=options.platform, computes=options.train)
    console = plain_console(stderr=True) if options.json else table_console()
    checks = list(_finished(all_checks(examination, configured_hosts()), console))
    report = Checkup(version=version("shardtui"), checks=[_anonymous(check) for check in checks])
    path = state_directory() / "doctor.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_json(report))
        where = f"Report, without names: {path}"
    except OSError as error:
        where = f"No report: {path}: {error.strerror}"
    if other:
        console.print(_differences(report, other))
    counts = [sum(check.verdict == verdict for check in checks) for verdict in STYLES]
    console.print(f"{counts[0]} ok, {formatting.counted(counts[1], 'warning')}, {counts[2]} broken. {where}")
    if options.json:
        show(json_line(report))
    return FAILED if any(check.verdict == "broken" for check in checks) else FINE


def all_checks(examination: Examination, hosts: Sequence[str]) -> Iterator[Check]:
    """Yields each check before it runs, and after it. `hosts`: those whose clocks are compared with this one's."""
    yield from examined("terminal", check_terminal)
    devices = 0
    for check in _of_engine(examination):
        devices = int(check.numbers.get("devices", devices))
        yield check
    if hosts:
        yield from examined("clocks of hosts", lambda: asyncio.run(_check_clocks(hosts)))
    if examination.computes and devices:
        yield from TrainingChecks(examination, devices).all()


def _of_engine(examination: Examination) -> Iterator[Check]:
    """Yields the checks of an engine process. If it ends or hangs in one, that one is broken."""
    running = Check(name="engine", verdict="running")
    with (
        TemporaryFile() as errors,
        subprocess.Popen(
            engine_command("examine", examination), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout
        while True:
            began, timer = time.monotonic(), Timer(LONGEST_SECONDS, process.kill)
            timer.start()
            line = process.stdout.readline()
            timer.cancel()
            if not line:
                break
            running = decode(line, Check, "the engine's answer")
            yield clean(running)
        seconds, status = time.monotonic() - began, process.wait()
        if status == 0 and running.verdict != "running":
            return
        errors.seek(0)
        said = last_words(errors.read().decode(errors="replace").splitlines())
        why = f"no answer in {seconds:.0f} s" if seconds >= LONGEST_SECONDS else exit_words(status)
        yield clean(
            Check(
                name=running.name,
                verdict="broken",
                found=f"{why}: {said or 'no message'}",
                advice=ALL_HOSTS if running.name == "devices" else "",
                seconds=seconds,
            )
        )


def check_terminal() -> Check:
    if not sys.stdout.isatty():
        return Check(found="stdout is no terminal")
    colours, size = plain_console().color_system, shutil.get_terminal_size()
    found = f"{os.environ.get('TERM', 'no TERM')}, {size.columns}×{size.lines}, colours: {colours or 'none'}"
    problems = list[str]()
    if size < LEAST_SIZE:
        problems.append("views need 80×24 to show their columns: make it larger")
    if colours != "truecolor":
        problems.append("set COLORTERM=truecolor if your terminal has 24-bit colours, for exact ones")
    if "TMUX" in os.environ:
        if _tmux("set-clipboard") != "on":
            problems.append("copying (OSC 52) needs `tmux set -g set-clipboard on`")
        if _tmux("allow-passthrough") not in ("on", "all"):
            problems.append("progress in the tab (OSC 9;4) needs `tmux set -g allow-passthrough on`")
    if os.environ.get("TERM_PROGRAM") == "Apple_Terminal":
        problems.append("Apple's Terminal has no OSC 52: copying needs another terminal")
    return Check(verdict="warning" if problems else "ok", found=found, advice="; ".join(problems))


def _tmux(option: str) -> str:
    asked = subprocess.run(["tmux", "show-options", "-gv", option], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


async def _check_clocks(hosts: Sequence[str]) -> Check:
    found = await asyncio.gather(*map(_skew, hosts))
    silent = [f"host {at}: {skew}" for at, skew in enumerate(found, 1) if isinstance(skew, str)]
    skews = {at: skew for at, skew in enumerate(found, 1) if isinstance(skew, float)}
    late = [f"host {at} is {skew:+.1f} s from this one" for at, skew in skews.items() if abs(skew) > MOST_SKEW_SECONDS]
    words = f"{len(skews)} of {len(hosts)} answer" + "".join(f"; {each}" for each in (*late, *silent))
    numbers = {"largest skew seconds": round(max(map(abs, skews.values())), 2)} if skews else {}
    if not late and not silent:
        return Check(found=f"{words}, within {MOST_SKEW_SECONDS:g} s", numbers=numbers)
    advice = "set all clocks by NTP" if late else "`ssh HOST date` must work without a question"
    return Check(verdict="warning", found=words, advice=advice, numbers=numbers)


async def _skew(host: str) -> float | str:
    """Returns how far a host's clock is ahead, in seconds, without the time of the way; or why that is not known."""
    before = time.time()
    try:
        there = float(await output_of(host, "date +%s.%N"))
    except UserError as error:
        return "; ".join(error.problems).replace(host.rpartition("@")[2], "HOST")
    except ValueError:
        return "no time in its answer"
    return there - min(max(there, before), time.time())


def _finished(checks: Iterable[Check], console: Console) -> Iterator[Check]:
    """Yields the checks that have ended, and prints them; the name of the one that runs meanwhile."""
    with console.status("") if console.is_terminal else nullcontext() as status:
        for check in checks:
            if check.verdict != "running":
                console.print(_line(check))
                yield check
            elif status is not None:
                status.update(check.name)


def _line(check: Check) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7)
    table.add_column(width=17)
    table.add_column(overflow="fold")
    table.add_row(Text(check.verdict, STYLES[check.verdict]), check.name, check.found)
    if check.advice:
        table.add_row("", "", Text(f"→ {check.advice}", "bold"))
    return table


def _anonymous(check: Check) -> Check:
    return replace(check, found=_without_names(check.found), advice=_without_names(check.advice))


def _without_names(text: str) -> str:
    """Replaces the names of this host, its user and the home directory."""
    text = text.replace(str(Path.home()), "~")
    for name, word in ((socket.gethostname(), "HOST"), (Path.home().name, "USER")):
        text = re.sub(rf"\b{re.escape(name)}\b", word, text) if name else text
    return text


def _differences(report: Checkup, earlier: Checkup) -> Table:
    """Returns a table of the verdicts that differ, and all numbers that either has."""
    texts = (Column(name, overflow="fold") for name in ("check", "what"))
    table = plain_table(*texts, *map(right, ("here", "there", "here ÷ there")))
    ours, theirs = ({check.name: check for check in each.checks} for each in (report, earlier))
    nothing = Check()
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        verdict, before = (check.verdict if check else "–" for check in (one, other))
        if verdict != before:
            table.add_row(name, "verdict", verdict, before, "")
        numbers, others = (one or nothing).numbers, (other or nothing).numbers
        for what in dict.fromkeys([*numbers, *others]):
            pair = numbers.get(what), others.get(what)
            ratio = f"{pair[0] / pair[1]:.2f}" if pair[0] is not None and pair[1] else ""
            here, there = ("–" if number is None else f"{number:,g}" for number in pair)
            table.add_row(name, what, here, there, ratio)
    return table
