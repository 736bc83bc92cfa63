"""`shardtui engine`: the engine of one host of several, for a launcher to start on each."""

import argparse
import os
import sys
from pathlib import Path

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.spec.config import Membership, Restart
from ...engine.wire import run_directory
from ...engine.wire.run_directory import state_home
from .run_config import new_config, restart_of, resumed


def become_engine(options: argparse.Namespace) -> int:
    """Becomes the engine: what launched this command signals and awaits that."""
    membership = Membership(
        coordinator=options.coordinator,
        processes=options.num_processes,
        process=options.process_id,
        secret_file=options.secret_file and str(Path(options.secret_file).absolute()),
        insecure=options.insecure,
    )
    problems = _membership_problems(membership)
    if not (options.run_name or options.resume):
        problems.append("engine: --run NAME is missing: the same on every host; --resume NAME to go on with one")
    config, restart = None, Restart(profile=options.profile)
    try:
        if not options.resume:
            config = new_config(options)
        elif (state_home() / options.resume).is_dir():
            restart = resumed(run_directory.find(options.resume), options)
        else:  # process 0 refuses; another host may be new to the run, and its options have to say the same
            options.run_name = options.resume
            restart = restart_of(options, new_config(options))
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    if problems:
        raise Invalid(*problems)
    about = (msgspec.json.encode(part).decode() for part in (config, restart, membership))
    command = [sys.executable, "-P", "-m", "shardtui.engine", "host", options.resume or options.run_name, *about]
    os.execv(sys.executable, command)


def _membership_problems(membership: Membership) -> list[str]:
    given = (membership.coordinator, membership.processes, membership.process)
    if given == (None, None, None):
        return []
    if None in given:
        return ["--coordinator, --num-processes and --process-id go together: give all three, or none on a TPU pod"]
    host, _, port = (membership.coordinator or "").rpartition(":")
    count, number = membership.processes or 0, membership.process or 0
    checks = [
        (host and port.isdecimal() and 0 < int(port) < 2**16, f"--coordinator {membership.coordinator}: not HOST:PORT"),
        (count >= 1, f"--num-processes {count}: at least 1"),
        (0 <= number < count, f"--process-id {number}: from 0 to {count - 1}, a different one on each host"),
    ]
    return [text for holds, text in checks if not holds]
