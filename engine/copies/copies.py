"""Copies the state to host memory beside the steps, and to another host's, if there are several."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from msgspec import Struct

from ..base import figures
from ..base.advice import problems_in
from ..checkpoint.directory import state_names
from ..checkpoint.manifest import Manifest
from ..checkpoint.saver import Saver
from ..distributed.cluster import Cluster
from ..models.task import Task, TrainState
from ..program.program import Program
from ..spec.epoch import Copying
from ..wire.events import CopyFailed, Event
from .host_memory import entries, shortage
from .neighbours import Neighbours
from .part import Part, named, write_part
from .shares import Shard, Shares, copied, shares

POLL_SECONDS = 0.02
"""Interval at which the end of a copy is waited for."""
Copy = tuple[int, int, int]
"""Step, epoch and number of processes, as of `Part.copy`."""


class CopyEnded(Struct, frozen=True, tag=True):
    """All processes have ended their part of the copy of `step`, as process 0 has seen."""

    step: int
    is_complete: bool
    """Whether all have succeeded: then it replaces the one before."""


@dataclass
class Running:
    """A copy that is being written."""

    part: Part
    problems: list[str] = field(default_factory=list[str])
    """What went wrong in this process."""
    is_ended: bool = False
    """Whether this process is done with it."""


class Copies:
    """Copies the state every so many steps; in the training thread, except `_write`.

    All processes begin and end a copy between the same steps, so that the last complete one is kept by all. One that is
    due while another is being written is left out: no step waits for a copy.
    """

    def __init__(
        self,
        copying: Copying,
        epoch: int,
        saver: Saver,
        task: Task,
        cluster: Cluster,
        publish: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called in another thread once a copy has ended."""
        self._every = copying.every_steps
        self.folder = Path(copying.folder)
        """Where this host keeps copies."""
        self.neighbours = Neighbours(self.folder, cluster)
        """The processes of the run."""
        self._epoch, self._saver, self._task = epoch, saver, task
        self._cluster, self._publish, self._wake = cluster, publish, wake
        self._running: Running | None = None
        self._kept: Copy | None = None
        self._program: Program | None = None
        self._shares: Shares | None = None
        """Those of `_program`; None if there are no copies of it."""
        self._said: list[list[str]] = []
        """Problems that were reported."""

    def is_due(self, step: int) -> bool:
        """Returns whether to copy the state after `step` steps; says once if another copy takes too long for that."""
        if step % self._every:
            return False
        if self._running:
            self._report(
                step, [f"copies take longer than {self._every:,} steps, some are left out: give a larger --copy-every"]
            )
        return self._running is None

    def begin(
        self, state: TrainState, program: Program, step: int, loss: float | None, eval_loss: float | None
    ) -> None:
        """Copies this process's share to the host, and writes it in the background, unless a host has no room.

        In all processes after the same step. Waits for the devices, but for no disk and no network.
        """
        share = self._shares_of(program, step)
        if share is None:
            return
        running = Running(Part(step, self._epoch, self._cluster.process, self._cluster.count))
        self._running = running
        digests, is_finite = program.digest(state), program.is_finite(state)
        found = copied(state, share, self._cluster.process)

        def described() -> Manifest:
            return self._saver.manifest(program, step, digests, loss, eval_loss)

        threading.Thread(
            target=self._write, args=(running, found, described, is_finite), name="copies", daemon=True
        ).start()

    def _shares_of(self, program: Program, step: int) -> Shares | None:
        """Returns who copies what of the program's state; None if it cannot be copied, or a host has no room for it.

        That is reported.
        """
        if program is not self._program:
            abstract = program.placement.abstract_state(self._task)
            found = shares(abstract, self._cluster.count)
            no_room = shortage(self.folder, 2 * self.neighbours.kept_bytes(found.bytes))
            problem = key_problem(state_names(self._task), abstract) or no_room
            problems = self.of_all([problem] if problem else [])
            self._program, self._shares = program, None if problems else found
            self._report(step, problems)
        return self._shares

    def _write(
        self, running: Running, found: list[Shard], described: Callable[[], Manifest], is_finite: jax.Array
    ) -> None:
        """Writes the part of this process, has the neighbour keep it, too, and reports that. Runs in a thread."""
        step = running.part.step
        running.problems = self._problems(running.part, found, described, is_finite)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordination service is gone, and the run ends
            if not running.problems:
                self._cluster.report_reached(f"copied-{step}")
            self._cluster.report_reached(f"copy-ended-{step}")
        running.is_ended = True
        self._wake()

    def _problems(
        self, part: Part, found: list[Shard], described: Callable[[], Manifest], is_finite: jax.Array
    ) -> list[str]:
        try:
            if not is_finite:
                return ["a parameter or moment is not finite"]
            write_part(self.folder, part, found, described())
        except OSError as error:
            return [f"{self.folder}: {error.strerror}"]
        except Exception as error:
            return problems_in(error)
        neighbour = self.neighbours.of(part.process)
        return [] if neighbour is None else self.send(part, neighbour)

    def send(self, part: Part, process: int) -> list[str]:
        """Has a process on another host keep a part of this one's, and returns what went wrong."""
        try:
            with self.neighbours.peer(process) as peer:
                peer.keep(self.folder, part)
        except Exception as error:
            return [f"process {process} does not keep it: {getattr(error, 'strerror', None) or error}"]
        return []

    def ended(self) -> CopyEnded | None:
        """Returns how a copy has ended, once all processes are done with it; None before. For process 0."""
        running = self._running
        if running is None or not running.is_ended:
            return None
        step = running.part.step
        if not self._cluster.have_all_reached(f"copy-ended-{step}"):
            return None
        return CopyEnded(step, not running.problems and self._cluster.have_all_reached(f"copied-{step}"))

    def settle(self, ended: CopyEnded) -> None:
        """Keeps a complete copy in place of the one before, or the one before. In all processes before a step."""
        running = self._running
        if running is None or running.part.step != ended.step:  # the run went back in the meantime
            return
        self._running = None
        for name in ("copied", "copy-ended"):
            self._cluster.clear_reached(f"{name}-{ended.step}")
        if ended.is_complete:
            self._kept = running.part.copy
        else:
            self._report(ended.step, self.of_all(running.problems))
        threading.Thread(target=_delete, args=(self._others(),), name="copies-old", daemon=True).start()

    def keep(self, copy: Copy) -> None:
        """Keeps a copy that was restored until the next one is complete, and no other. In all processes."""
        self._kept = copy
        _delete(self._others())

    def clear(self) -> None:
        """Deletes all copies: the run resumes from a checkpoint. In all processes before a step."""
        while self._running and not self._running.is_ended:
            time.sleep(POLL_SECONDS)
        self._cluster.gather(True, bool)  # nobody sends a part any more
        self._running = self._kept = None
        _delete(self._others())

    def _others(self) -> list[Path]:
        """Returns what is on this host besides the copy to keep. A part that is being written belongs to no copy."""
        found = [(path, named(path.name)) for path in entries(self.folder)]
        return [path for path, part in found if part is None or part.copy != self._kept]

    def of_all(self, problems: list[str]) -> list[str]:
        """Returns the problems of all processes, with their names if there are several."""
        everyone = self._cluster.gather(problems, list[str])
        return [
            f"process {process}: {problem}" if self._cluster.count > 1 else problem
            for process, found in enumerate(everyone)
            for problem in found
        ]

    def _report(self, step: int, problems: list[str]) -> None:
        """Reports problems, the same ones once."""
        if problems and problems not in self._said:
            self._said.append(problems)
            self._publish(CopyFailed(step=step, problems=problems))


def key_problem(names: Sequence[str], state: Any) -> str:
    """Returns why a state cannot be copied: it has random keys, which are no arrays of numbers; empty if it can."""
    keys = [
        name
        for name, leaf in zip(names, jax.tree.leaves(state), strict=True)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    if not keys:
        return ""
    return (
        f"{figures.listed(keys, 4)}: random keys are not copied to host memory: the run goes on without copies: keep "
        "their numbers in the state, as jax.random.key_data gives them"
    )


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)  # processes of one host do so at once
