"""`shardtui engine`: the engine of one host of a multi-host run; a launcher starts one on every host."""

import argparse
import os

import msgspec

from ...engine.base.user_error import refuse, together
from ...engine.spec.attempt import Supervision
from ...engine.spec.config import Membership, Restart, RunConfig
from ...engine.wire import engine_command as process
from ...engine.wire import run_directory
from ...engine.wire.run_directory import state_home
from . import values
from .options import add_schedule_options, add_supervision_options, add_training_options
from .run_config import new_config, restart_of, resumed, supervision


def engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_training_options(parser)
    add("--coordinator", metavar="HOST:PORT", help="address of process 0; detected on a TPU pod and under Slurm")
    add("--num-processes", type=int, metavar="N", help="number of processes, one per host")
    add("--process-id", type=int, metavar="I", help="number of this process, from 0")
    add(
        "--secret-file",
        type=values.path,
        metavar="FILE",
        help="the run's secret, the same on every host; default: $SHARDTUI_SECRET, or created next to the checkpoints",
    )
    add("--insecure", action="store_true", help="use no secret; only on a network that nobody else can reach")
    add_supervision_options(parser)
    add(
        "--wait-for-host",
        type=float,
        metavar="S",
        help="with --supervise: wait S seconds for lost hosts to return; default: go on at once with "
        "--min-processes, else wait for ever",
    )
    add_schedule_options(parser)


def engine_command(options: argparse.Namespace) -> int:
    """Replaces this process with the engine, so that the launcher signals and awaits it. Raises UserError."""
    membership = Membership(
        coordinator=options.coordinator,
        processes=options.num_processes,
        process=options.process_id,
        secret_file=options.secret_file,
        insecure=options.insecure,
    )
    problems = _membership_problems(membership)
    if not (options.run_name or options.resume):
        problems.append(
            "engine: --run NAME is missing: give the same name on every host, or --resume NAME to resume a run"
        )
    config = None
    restart = Restart(profile=options.profile, profile_every=options.profile_every)
    supervised = None
    with together(problems):
        supervised = supervision(options)
        if not options.resume:
            config = new_config(options)
        elif (state_home() / options.resume).is_dir():
            restart = resumed(run_directory.find(options.resume), options)
        else:  # process 0 refuses; another host may be new to the run, and its options have to say the same
            options.run_name = options.resume
            restart = restart_of(options, new_config(options))
    if supervised:
        command = _supervisor_command(config, restart, membership, supervised)
    else:
        command = process.engine_command("host", options.resume or options.run_name, config, restart, membership)
    os.execv(command[0], command)


def _supervisor_command(
    config: RunConfig | None, restart: Restart, membership: Membership, supervised: Supervision
) -> list[str]:
    """Returns the command that starts or resumes a supervised run: launchers can repeat it. Raises UserError."""
    about = config or restart.config
    assert about, "one of them is always given"
    directory = about.checkpoints.directory
    problems: list[str] = []
    if membership.coordinator is None:
        problems.append(
            "--supervise: give --coordinator, --num-processes and --process-id: jax detects no later attempts"
        )
    if directory is None or "://" in directory:
        problems.append(
            f"--supervise: supervisors meet in --checkpoint-dir, {directory or 'which is missing'}: give a directory "
            "on a file system that all hosts mount"
        )
    refuse(problems)
    restart = msgspec.structs.replace(restart, config=about)
    return process.engine_command("supervise-host", about.run, restart, membership, supervised)


def _membership_problems(membership: Membership) -> list[str]:
    given = (membership.coordinator, membership.processes, membership.process)
    if given == (None, None, None):
        return []
    if None in given:
        return ["--coordinator, --num-processes and --process-id belong together: give all three, or none on a TPU pod"]
    host, _, port = (membership.coordinator or "").rpartition(":")
    count, number = membership.processes or 0, membership.process or 0
    checks = [
        (host and port.isdecimal() and 0 < int(port) < 2**16, f"--coordinator {membership.coordinator}: not HOST:PORT"),
        (count >= 1, f"--num-processes {count}: must be at least 1"),
        (0 <= number < count, f"--process-id {number}: must be from 0 to {count - 1}, different on each host"),
    ]
    return [text for holds, text in checks if not holds]
