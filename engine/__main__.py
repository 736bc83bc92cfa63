"""`python -m shardtui.engine serve RUN_DIRECTORY [RESTART [MEMBERSHIP]]`: trains one run, from its newest checkpoint if
it has one; with MEMBERSHIP as one of several processes on this machine.
`… host RUN CONFIG RESTART MEMBERSHIP`: as one of several hosts; which one may show only when they have met.
`… presets CONFIG`: says which presets fit here.  `… inspect CONFIG [PRESET …]`: describes the step under each preset.
`… verify RUN_DIRECTORY`: checks every checkpoint.
`… plan CONFIG WHERE [PRESET …]`: estimates presets on a slice.  `… compile CONFIG TOPOLOGY PRESET`: compiles one.
`… search CONFIG TOPOLOGY`: estimates every mesh of a slice.
"""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from .distributed.seal import Seal
from .spec.config import Membership, Restart, RunConfig
from .wire.answers import answered
from .wire.run_directory import RunDirectory

ON_CPU = ("verify", "plan", "search", "compile")
"""Commands that touch no device but one CPU, whatever else is there."""


def main() -> int:
    """Imports what a command needs once it is known: jax takes a second."""
    if sys.argv[1:2] and sys.argv[1] in ON_CPU:
        os.environ["JAX_PLATFORMS"] = "cpu"
    match sys.argv[1:]:
        case ["serve", directory, *how]:
            return _serve(RunDirectory(Path(directory)), *how)
        case ["host", run, config, restart, membership]:
            from .training.follow import host

            about = _decoded(config, RunConfig | None), _decoded(restart, Restart), _decoded(membership, Membership)
            return answered(host, run, *about)
        case ["verify", directory]:
            from .checkpoint.answers import verify

            return answered(verify, directory)
        case ["presets" | "inspect" as command, config, *others]:
            from .program import answers as programs

            return answered(getattr(programs, command), _decoded(config, RunConfig), *others)
        case ["plan" | "search" | "compile" as command, config, where, *names]:
            from .planning import answers as plans

            answer = {"plan": plans.plan, "search": plans.search, "compile": plans.compile_one}[command]
            return answered(answer, _decoded(config, RunConfig), where, *names)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def _serve(directory: RunDirectory, restart: str = "{}", membership: str = "") -> int:
    from .training.serve import serve

    how = _decoded(restart, Restart)
    if not membership:
        return serve(directory, how)

    found = _decoded(membership, Membership)

    def join() -> Seal:
        from .distributed import joining

        return joining.join(found, directory, how)

    if not found.process:
        return serve(directory, how, join)

    from .training.follow import follow

    return answered(follow, directory, how, join)


def _decoded(text: str, kind: Any) -> Any:
    return msgspec.json.decode(text, type=kind)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a compilation that nobody awaits any more must not hold the process
