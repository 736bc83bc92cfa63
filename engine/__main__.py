"""The engine's command line, which the UI calls: `python -m shardtui.engine COMMAND …`.

`serve RUN_DIRECTORY [RESTART [MEMBERSHIP]]`: trains one run, from its newest checkpoint if it has one; with MEMBERSHIP
as one of several processes on this machine.
`host RUN CONFIG RESTART MEMBERSHIP`: trains one run as one of several hosts.
`supervise RUN_DIRECTORY RESTART SUPERVISION`: serves a run, and again from its newest checkpoint if a process is lost.
`supervise-host RUN RESTART MEMBERSHIP SUPERVISION`: the same for the process of one host of several.
`presets CONFIG`: lists the presets and whether they fit the devices.
`inspect CONFIG [PRESET …]`: describes the compiled step of each preset.
`inspect-origins CONFIG`: describes the compiled step of a preset, then explains it.
`verify RUN_DIRECTORY`: checks every checkpoint.
`plan CONFIG TARGET [PRESET …]`: estimates presets on a TPU slice, or on a number of local devices.
`compile CONFIG TOPOLOGY PRESET`: compiles a preset ahead of time for a TPU slice.
`explain PROGRAM`: explains a lowered program of the user's.
`why STEP`: explains the step of a preset.
`explain-kept FILE`: explains the step of an external loop.
`schedule CONFIG TOPOLOGY PRESET`: the same, and says where the time of a step goes.
`search CONFIG TOPOLOGY`: estimates every mesh of a TPU slice.
`export REQUEST`: writes a checkpoint as a model of transformers.
`prepare REQUEST`: tokenizes documents.
`profile TRACE MESH HLO`: accounts for the steps in a trace of the profiler.
`predict HLO MESH TOPOLOGY`: predicts where the time of a step goes, from the text of a program for a TPU slice.
"""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from .distributed.seal import Seal
from .spec.attempt import Supervision
from .spec.config import Membership, Restart, RunConfig
from .wire.run_directory import RunDirectory
from .wire.stdout import answered

ON_CPU = ("verify", "export", "plan", "search", "compile", "schedule", "explain", "explain-kept", "profile")
"""Commands that use only the CPU, even if there are other devices."""


def main() -> int:
    """Runs one command and returns its exit code. Imports only what that command needs, because jax takes a second."""
    if sys.argv[1:2] and sys.argv[1] in ON_CPU:
        os.environ["JAX_PLATFORMS"] = "cpu"
    match sys.argv[1:]:
        case ["serve", directory, *how]:
            return _serve(RunDirectory(Path(directory)), *how)
        case ["host", run, config, restart, membership]:
            how = _decoded(restart, Restart)
            _end_with_supervisor(how)
            from .training.follow import host

            return answered(host, run, _decoded(config, RunConfig | None), how, _decoded(membership, Membership))
        case ["supervise", directory, restart, supervision]:
            from .supervision.supervisor import supervise

            return answered(supervise, directory, _decoded(restart, Restart), _decoded(supervision, Supervision))
        case ["supervise-host", run, restart, membership, supervision]:
            from .supervision.host_supervisor import supervise_host

            how = _decoded(restart, Restart), _decoded(membership, Membership), _decoded(supervision, Supervision)
            return answered(supervise_host, run, *how)
        case ["verify", directory]:
            from .checkpoint.cli import verify

            return answered(verify, directory)
        case ["export", request]:
            from .checkpoint.cli import export
            from .spec.exported import ExportRequest

            return answered(export, _decoded(request, ExportRequest))
        case ["prepare", request]:
            from .data.prepare import prepare_and_print
            from .spec.prepared import PrepareRequest

            return answered(prepare_and_print, _decoded(request, PrepareRequest))
        case ["profile", trace, mesh, hlo]:
            from .profiling.cli import profile

            return answered(profile, trace, mesh, hlo)
        case ["predict", hlo, mesh, topology]:
            from .profiling.cli import predict

            return answered(predict, hlo, mesh, topology)
        case ["presets" | "inspect" as command, config, *others]:
            from .program import cli as programs

            answer = {"presets": programs.presets, "inspect": programs.inspect}[command]
            return answered(answer, _decoded(config, RunConfig), *others)
        case ["plan" | "search" | "compile" | "schedule" as command, config, target, *names]:
            from .planning import cli as plans

            answers = {
                "plan": plans.plan,
                "search": plans.search,
                "compile": plans.compile_one,
                "schedule": plans.schedule_one,
            }
            return answered(answers[command], _decoded(config, RunConfig), target, *names)
        case ["inspect-origins", config]:
            from .origins.cli import inspect_with_origins

            return answered(inspect_with_origins, _decoded(config, RunConfig))
        case ["explain" | "explain-kept" | "why" as command, about]:
            from .base.parent_watchdog import end_with_parent

            end_with_parent()  # before jax is imported
            from .origins import cli as origins
            from .origins.explanation import KeptStepRequest, ProgramRequest, StepRequest

            if command == "explain":
                return answered(origins.explain_program, _decoded(about, ProgramRequest))
            if command == "explain-kept":
                return answered(origins.explain_kept_step, _decoded(about, KeptStepRequest))
            return answered(origins.why, _decoded(about, StepRequest))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def _serve(directory: RunDirectory, restart: str = "{}", membership: str = "") -> int:
    from .training.serve import serve

    how = _decoded(restart, Restart)
    _end_with_supervisor(how)
    if not membership:
        return serve(directory, how)

    found = _decoded(membership, Membership)

    def join() -> Seal:
        from .distributed import joining

        return joining.join(found, directory, how)

    if not found.process:
        return serve(directory, how, join)

    from .training.follow import follow

    return answered(follow, directory, how, join, found.process)


def _end_with_supervisor(restart: Restart) -> None:
    """Ends this process once its supervisor is gone: another one could not replace it otherwise."""
    if restart.attempt:
        from .base.parent_watchdog import end_with_parent

        end_with_parent()


def _decoded(text: str, kind: Any) -> Any:
    return msgspec.json.decode(text, type=kind)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for background compilations
