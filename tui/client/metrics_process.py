"""A process that writes the curves of a run elsewhere while it trains, `--to`. It is none of the run's: it outlives
engines and viewers, and ends by itself after the run."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

from ...engine.base.regular_file import append_regular
from ...engine.spec.config import Destination
from ...engine.wire.events import MetricsFailed
from ...engine.wire.run_directory import RunDirectory
from .engine_process import Answer, log_lines

POLL_SECONDS = 0.05
LAST_SECONDS = 30.0
"""Time for it to write the last steps after the run has ended; a slow network may take longer."""
COMMAND = [sys.executable, "-P", "-m", "shardtui.tui", "metrics"]


class MetricsProcess:
    def __init__(self, directory: RunDirectory, to: Destination, engine: int) -> None:
        """`engine`: the process of the run, or its supervisor, which has just begun. A process that cannot be started
        has failed."""
        self._log = directory.metrics_log(to.kind)
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        self._has_reported = False
        try:
            with append_regular(self._log) as file:
                self._log_begin = self._log.stat().st_size
                self._process = subprocess.Popen(
                    [*COMMAND, directory.name, f"--{to.kind}={to.place}", "--follow", f"--engine={engine}"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        except OSError as error:
            self._problem = f"{error.filename}: {error.strerror}"

    def end(self) -> None:
        """Ends it before the run has ended, as another process takes its place."""
        if self._process:
            self._process.terminate()

    def new_failure(self) -> MetricsFailed | None:
        """Returns how it has failed, once; None if it has not."""
        status = self._process.poll() if self._process else None
        if self._has_reported or not (status or self._problem):
            return None
        self._has_reported = True
        problem = self._problem or "; ".join(Answer(status or 0, b"", log_lines(self._log, self._log_begin)).problems)
        return MetricsFailed(problem=problem, time=time.time())

    async def wait(self, is_enough: Callable[[], bool]) -> str:
        """Waits until it has written everything, or it `is_enough`. Returns a remark if it has not in time."""
        until = time.monotonic() + LAST_SECONDS
        while self._process and self._process.poll() is None:
            if is_enough() or time.monotonic() > until:
                return f"process {self._process.pid} still writes the curves: {self._log}"
            await asyncio.sleep(POLL_SECONDS)
        return ""
