"""Saves the state of a run while it trains, in a directory that all processes share."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import msgspec

from ..base.advice import problems_in
from ..base.user_error import UserError
from ..distributed.cluster import Cluster
from ..distributed.outcomes import UNSUCCESSFUL, Failure, Unreadable
from ..models.task import Task, TrainState
from ..program.digest import joined
from ..program.program import Program
from ..spec.config import RunConfig, UserModel
from ..wire.checkpoints import CheckpointInfo
from ..wire.descriptions import CorpusInfo
from ..wire.events import CheckpointFailed, CheckpointSaved, CheckpointSaving, CheckpointsKept, Event
from .arrays import save_arrays, small
from .directory import CheckpointDirectory, array_types, kept, state_names
from .loader import Loader
from .manifest import Manifest, file_digests, write_manifest
from .owned_directory import OwnedDirectory


@dataclass(frozen=True)
class Saving:
    """A save in the background."""

    step: int
    written: Future[list[Event]]
    """The events to publish once it is written, in process 0."""


class Saver:
    """Saves and loads checkpoints of a run that this process has locked; in the training thread, except `_write`."""

    replaced: Mapping[str, str] = {}
    """A preset that is used on fewer devices, by name, to the one that the run returns to."""

    def __init__(
        self,
        directory: CheckpointDirectory,
        config: RunConfig,
        task: Task,
        corpus: CorpusInfo,
        cluster: Cluster,
        publish: Callable[[Event], None],
        wake: Callable[[], None],
        refusal: type[UserError] | type[Failure] = UserError,
    ) -> None:
        """Takes the directory's lease. `wake` is called in another thread once a save has ended. Raises UserError if
        nothing can be saved, `refusal` if another run saves there."""
        self._config, self._task, self._corpus = config, task, corpus
        self._cluster, self._publish, self._wake = cluster, publish, wake
        self._saving: Saving | None = None
        self._saved_at = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._directory = OwnedDirectory.take(directory, cluster, refusal)
        self._loader = Loader(self._directory, cluster, publish)
        self._identity = self._directory.identity()
        self._kept: list[CheckpointInfo] = []
        self._has_told = False
        """Whether the loss of the lease was reported."""
        if isinstance(config.model, UserModel):  # the arrays of the built-in ones are known
            self._try()

    def _try(self) -> None:
        """Saves small arrays with the names and types of the state's. Raises UserError if they cannot be saved."""
        trial, names = self._directory.unfinished(0), state_names(self._task)
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UserError(f"several of the model's arrays are called {twice[0]}, so they cannot be saved: rename one")
        try:
            self._cluster.run_on_all(lambda: save_arrays(trial, small(self._task.abstract_state)).result())
        except Failure as error:
            types = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(self._task.abstract_state)})
            why = f"the model's arrays, of {', '.join(types)}, cannot be saved"
            raise UserError(*(f"{why}: {problem}" for problem in error.problems)) from error
        finally:
            self._cluster.broadcast(lambda: self._directory.discard(0), None)

    def is_due(self, step: int) -> bool:
        every = self._config.checkpoints.every_steps
        return every is not None and step % every == 0

    def is_overdue(self) -> bool:
        every = self._config.checkpoints.every_minutes
        return every is not None and (time.monotonic() - self._saved_at) / 60 >= every

    def save(
        self, state: TrainState, program: Program, step: int, loss: float | None, eval_loss: float | None = None
    ) -> None:
        """Copies the state to the host and writes it in the background, after another save. The losses are None if
        unknown or not finite."""
        self.finish()
        self._saved_at = time.monotonic()
        try:
            if self._cluster.broadcast(lambda: self._is_wanted(step), bool):
                self._cluster.run_on_all(
                    lambda: self._begin(state, program, step, loss, eval_loss), has_collectives=True
                )
        except UNSUCCESSFUL as error:
            self._failed(step, list(error.problems))

    def _is_wanted(self, step: int) -> bool:
        if self._directory.identity() != self._identity:
            raise UserError(
                f"{self._directory.run}: the run's directory was removed or replaced: nothing more can be saved there"
            )
        self._directory.check_lease()
        return step not in self._directory.steps()

    def _begin(
        self, state: TrainState, program: Program, step: int, loss: float | None, eval_loss: float | None
    ) -> None:
        began = time.perf_counter()
        digests = program.digest(state)
        if not program.is_finite(state):
            raise UserError("a parameter or moment is not finite: go back to a checkpoint from before")
        copied = save_arrays(self._directory.unfinished(step), state)
        manifest = self._manifest(program, step, digests, loss, eval_loss)
        self._publish(CheckpointSaving(step=step, stall_seconds=time.perf_counter() - began))
        written = self._thread.submit(self._write, copied, manifest, began)
        written.add_done_callback(lambda _: self._wake())
        self._saving = Saving(step, written)

    def _manifest(
        self, program: Program, step: int, digests: jax.Array, loss: float | None, eval_loss: float | None
    ) -> Manifest:
        return Manifest(
            step=step,
            time=time.time(),
            preset=program.placement.preset.reference,
            in_place_of=self.replaced.get(program.name),
            platform=program.placement.platform,
            devices=program.placement.mesh.size,
            loss=loss,
            eval_loss=eval_loss,
            config=self._config,
            corpus=self._corpus,
            digests=dict(zip(state_names(self._task), joined(digests).tolist(), strict=True)),
            arrays=array_types(self._task),
            files={},
        )

    def _write(self, copied: Any, manifest: Manifest, began: float) -> list[Event]:
        """Commits a checkpoint in process 0, in the background, once Orbax says that all processes have written."""
        copied.result()
        if self._cluster.process:
            return []
        unfinished = self._directory.unfinished(manifest.step)
        manifest = msgspec.structs.replace(manifest, files=file_digests(unfinished))
        write_manifest(manifest, unfinished)
        self._directory.commit(manifest.step)
        with contextlib.suppress(OSError, Failure):  # the save succeeded; the next one deletes what is left
            self._directory.prune(self._config.checkpoints.keep)
        seconds = time.perf_counter() - began
        saved = CheckpointSaved(step=manifest.step, bytes=manifest.bytes, arrays=len(manifest.digests), seconds=seconds)
        return [CheckpointsKept(checkpoints=self.kept()), saved]  # who hears of a checkpoint finds it among those kept

    def kept(self) -> list[CheckpointInfo]:
        """Returns the checkpoints that there are, or those last seen if they cannot be read now."""
        with contextlib.suppress(Unreadable):
            self._kept = kept(self._directory)
        return self._kept

    def report(self, step: int) -> None:
        """Publishes the result of a save that has ended, and once that the lease was lost."""
        if self._saving is not None and self._saving.written.done():
            self.finish()
        if self._directory.lease and self._directory.lease.lost and not self._has_told:
            self._failed(step, [self._directory.lease.lost])

    def close(self) -> None:
        self.finish()
        if self._directory.lease:
            self._has_told = True
            self._directory.lease.release()

    def finish(self) -> None:
        """Waits for a running save and publishes its result."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            receipts = saving.written.result()
        except Exception as error:
            self._failed(saving.step, problems_in(error))
        else:
            for receipt in receipts:
                self._publish(receipt)

    def _failed(self, step: int, problems: list[str]) -> None:
        self._has_told = self._has_told or bool(self._directory.lease and self._directory.lease.lost)
        with contextlib.suppress(OSError, Failure):  # Orbax may still write there: the next save deletes the rest
            if self._cluster.process == 0 and self._directory.identity() == self._identity:
                self._directory.clear()
        self._publish(CheckpointFailed(step=step, problems=problems))

    def newest(self, step: int | None = None) -> Manifest | None:
        self.finish()
        return self._loader.newest(step)

    def load(self, step: int, program: Program) -> TrainState:
        self.finish()
        state = self._loader.load(step, program)
        self._saved_at = time.monotonic()
        self._publish(CheckpointsKept(checkpoints=self.kept()))
        return state
