"""Loads a run's state from a good checkpoint; sets aside damaged ones and, after a rollback, later ones."""

import contextlib
import time
from collections.abc import Callable
from functools import partial

from ..base.user_error import UserError
from ..distributed.cluster import Cluster
from ..distributed.outcomes import Damaged, Failure
from ..models.task import TrainState
from ..program.program import Program
from ..wire.events import CheckpointDamaged, CheckpointsKept, Event, Restored
from .arrays import load_arrays
from .directory import check_digests, kept, state_names
from .manifest import Manifest, read_manifest
from .owned_directory import DAMAGED, ROLLED_BACK, OwnedDirectory


class Loader:
    """Loads checkpoints while nothing is being saved."""

    def __init__(self, directory: OwnedDirectory, cluster: Cluster, publish: Callable[[Event], None]) -> None:
        self._directory, self._cluster, self._publish = directory, cluster, publish

    def newest(self, step: int | None = None) -> Manifest | None:
        """Returns the manifest of the newest good checkpoint, or of `step`; None if there are no checkpoints. Sets
        damaged ones aside. Raises UserError if there are checkpoints but no good one, or none of `step`; Failure if one
        cannot be read, which may be good."""
        chosen = self._cluster.broadcast(lambda: self._newest(step), int | None)
        return None if chosen is None else self._cluster.run_on_all(lambda: self._manifest(chosen))

    def load(self, step: int, program: Program) -> TrainState:
        """Returns the state with the program's shardings, its digests compared, and reports that. Sets later
        checkpoints aside, since those steps are saved again. Raises Damaged, after setting the checkpoint aside;
        UserError if there is none of this step; Failure if it could not be loaded."""
        began = time.perf_counter()
        try:
            self._cluster.broadcast(lambda: self._check(step), None)
            state, manifest = self._loaded(step, program)
        except Damaged as error:
            if not self._cluster.broadcast(partial(self._set_aside, step, error), str):
                raise Failure(*error.problems) from error  # it would be chosen again
            raise
        rolled_back = self._cluster.broadcast(lambda: self._roll_back(step), list[int])
        self._publish(
            Restored(
                step=step,
                from_preset=manifest.preset,
                from_devices=manifest.devices,
                preset=program.name,
                arrays=len(manifest.digests),
                seconds=time.perf_counter() - began,
                digests_equal=True,
                rolled_back=rolled_back,
            )
        )
        return state

    def _loaded(self, step: int, program: Program) -> tuple[TrainState, Manifest]:
        manifest = self._cluster.run_on_all(lambda: self._manifest(step))
        abstract = program.placement.abstract_state
        state = self._cluster.run_on_all(lambda: load_arrays(self._directory.path(step), abstract))
        names = state_names(program.placement.task)
        self._cluster.run_on_all(lambda: check_digests(state, names, manifest, program.digest), has_collectives=True)
        return state, manifest

    def _manifest(self, step: int) -> Manifest:
        """Reads the manifest. Raises Failure if it is damaged, since process 0 has just read and checked it."""
        try:
            return read_manifest(self._directory.path(step))
        except Damaged as error:
            raise Failure(*error.problems) from error

    def _newest(self, step: int | None) -> int | None:
        found = self._directory.steps()
        for candidate in [other for other in reversed(found) if step in (None, other)]:
            try:
                self._directory.checked(candidate)
            except Damaged as error:
                self._set_aside(candidate, error)
            else:
                return candidate
        if step is not None:
            raise self._not_found(step)
        if found or self._directory.aside():
            raise UserError(f"{self._directory.root}: no intact checkpoint, all were set aside: start a new run")
        return None

    def _check(self, step: int) -> None:
        if step not in self._directory.steps():
            raise self._not_found(step)
        self._directory.checked(step)

    def _roll_back(self, step: int) -> list[int]:
        later = [other for other in self._directory.steps() if other > step]
        for other in later:
            self._directory.set_aside(other, ROLLED_BACK)
        return later

    def _not_found(self, step: int) -> UserError:
        known = ", ".join(map(str, self._directory.steps())) or "none"
        return UserError(f"no intact checkpoint of step {step}: there are {known}")

    def _set_aside(self, step: int, error: Damaged) -> str:
        """Returns the checkpoint's new name; empty if it could not be renamed."""
        name = ""
        with contextlib.suppress(OSError):  # a read-only directory: the checkpoint is skipped all the same
            name = self._directory.set_aside(step, DAMAGED)
        self._publish(CheckpointDamaged(step=step, problems=list(error.problems), set_aside=name))
        self._publish(CheckpointsKept(checkpoints=kept(self._directory)))
        return name
