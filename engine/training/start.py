"""Starts the engine process of a run on this machine."""

from pathlib import Path

from ..distributed.seal import Seal
from ..spec.config import Membership, Restart
from ..wire.run_directory import RunDirectory
from .serve import end_with_supervisor, serve


def serve_run(directory: str, restart: Restart | None = None, membership: Membership | None = None) -> int:
    """Trains one run, from its newest checkpoint if it has one; as one of several processes with a `membership`.
    Returns the exit code. Raises UserError."""
    run, restart = RunDirectory(Path(directory)), restart or Restart()
    end_with_supervisor(restart)
    if membership is None:
        return serve(run, restart)

    def join() -> Seal:
        from ..distributed import joining

        return joining.join(membership, run, restart)

    if not membership.process:
        return serve(run, restart, join)

    from .follow import follow

    return follow(run, restart, join, membership.process)
