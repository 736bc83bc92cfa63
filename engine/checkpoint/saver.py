"""Saves the run's state beside its steps, and loads it: when, in which thread, and what is told of it."""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import msgspec
from msgspec import Struct

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..distributed.cluster import Cluster
from ..distributed.outcomes import UNSUCCESSFUL, Damaged
from ..models.task import Task, TrainState
from ..program.digest import joined
from ..program.program import Program
from ..spec.config import RunConfig
from ..wire.descriptions import CheckpointInfo, CorpusInfo
from ..wire.events import (
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    CheckpointsKept,
    Event,
    Restored,
)
from .directory import (
    DAMAGED,
    ROLLED_BACK,
    SAVING,
    Place,
    array_types,
    check_digests,
    load_arrays,
    save_arrays,
    state_names,
)
from .manifest import Manifest, file_digests, manifest_digest, read_manifest, write_manifest


@dataclass(frozen=True)
class Saving:
    """A save that goes on in the background."""

    step: int
    written: Future[tuple[CheckpointSaved, CheckpointsKept] | None]
    """None in all processes but the first."""


class Chosen(Struct, frozen=True):
    """A checkpoint to go on from, which each process reads itself. `problems`: why its files are not good."""

    step: int
    sha256: str = ""
    """Of its manifest."""
    problems: list[str] = []


class Saver:
    """Of a run whose lock this process holds. All but `_write` happens in the training thread."""

    def __init__(
        self,
        place: Place,
        config: RunConfig,
        task: Task,
        corpus: CorpusInfo,
        devices: Sequence[jax.Device],
        cluster: Cluster,
        publish: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called in another thread once a save is over. Raises Invalid where nothing can be kept."""
        self._place = place
        self._config = config
        self._task = task
        self._corpus = corpus
        self._devices = devices
        self._cluster = cluster
        self._publish = publish
        self._wake = wake
        self._saving: Saving | None = None
        self._saved_at = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        mark = cluster.agree(self._prepare, str)
        cluster.together(lambda: self._refuse_unshared(mark))
        cluster.agree(self._place.clear, None)
        self._identity = self._place.identity()

    def _prepare(self) -> str:
        """Leaves a mark in the directory, by which the other processes see that theirs is the same."""
        mark = f"{SAVING}{secrets.token_hex(8)}"
        try:
            self._place.prepare()
            (self._place.root / mark).mkdir()
            (self._place.root / mark / "mark").write_text(mark)  # an object store has no empty folders
        except (OSError, ImportError) as error:
            raise Invalid(f"{self._place.root}: no checkpoint can be kept there: {problems_in(error)[0]}") from error
        return mark

    def _refuse_unshared(self, mark: str) -> None:
        if not (self._place.root / mark / "mark").exists():
            raise Invalid(
                f"{self._place.root}: this host does not see what process 0 wrote to its own: give a --checkpoint-dir "
                "that all hosts share"
            )

    def share_preset(self, name: str, text: str) -> str:
        """Leaves the text of a preset where all processes see it; its digest. What cannot be written, none can read."""
        with contextlib.suppress(OSError):
            self._place.presets.mkdir(exist_ok=True)
            (self._place.presets / f"{name}.toml").write_text(text)
        return hashlib.sha256(text.encode()).hexdigest()

    def shared_preset(self, name: str, sha256: str) -> str:
        """Raises Invalid."""
        path = self._place.presets / f"{name}.toml"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{path}: cannot be read: {error}") from error
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise Invalid(f"{path}: not the preset that was added: all hosts have to share this directory")
        return text

    def is_due(self, step: int) -> bool:
        every = self._config.checkpoints.every_steps
        return every is not None and step % every == 0

    def is_overdue(self) -> bool:
        """By the clock."""
        every = self._config.checkpoints.every_minutes
        return every is not None and (time.monotonic() - self._saved_at) / 60 >= every

    def save(self, state: TrainState, program: Program, step: int, loss: float | None) -> None:
        """Copies the state to the host and leaves the rest to the background. Waits for a save that still goes on.

        `loss`: None where it is not known, or not finite.
        """
        self.finish()
        self._saved_at = time.monotonic()
        try:
            if self._cluster.agree(lambda: self._is_wanted(step), bool):
                self._cluster.collectively(lambda: self._begin(state, program, step, loss))
        except UNSUCCESSFUL as error:
            self._failed(step, list(error.problems))

    def _is_wanted(self, step: int) -> bool:
        """Raises Invalid where the run's directory is not the one from the beginning."""
        if self._place.identity() != self._identity:
            raise Invalid(f"{self._place.run}: the run's directory was removed or replaced: nothing is saved in there")
        return step not in self._place.steps()

    def _begin(self, state: TrainState, program: Program, step: int, loss: float | None) -> None:
        began = time.perf_counter()
        digests = program.digest(state)
        if not program.is_finite(state):
            raise Invalid("a parameter or moment is not finite: go back to a checkpoint from before")
        copied = save_arrays(self._place.unfinished(step), state)
        manifest = Manifest(
            step=step,
            time=time.time(),
            preset=program.placement.preset.reference,
            platform=self._devices[0].platform,
            devices=len(self._devices),
            loss=loss,
            config=self._config,
            corpus=self._corpus,
            digest="mix64",
            digests=dict(zip(state_names(self._task), joined(digests).tolist(), strict=True)),
            arrays=array_types(self._task),
            files={},
        )
        self._publish(CheckpointSaving(step=step, stall_seconds=time.perf_counter() - began))
        written = self._thread.submit(self._write, copied, manifest, began)
        written.add_done_callback(lambda _: self._wake())
        self._saving = Saving(step, written)

    def _write(self, copied: Any, manifest: Manifest, began: float) -> tuple[CheckpointSaved, CheckpointsKept] | None:
        """In the background: waits for Orbax, reads what it wrote, commits, and clears away what need not be kept. What
        the other processes wrote is there then; all but waiting is left to process 0."""
        copied.result()
        if self._cluster.process:
            return None
        unfinished = self._place.unfinished(manifest.step)
        manifest = msgspec.structs.replace(manifest, files=file_digests(unfinished))
        write_manifest(manifest, unfinished)
        unfinished.rename(self._place.path(manifest.step))
        with contextlib.suppress(OSError):  # it is saved, and what cannot be deleted now can be the next time
            self._prune()
        seconds = time.perf_counter() - began
        saved = CheckpointSaved(step=manifest.step, bytes=manifest.bytes, arrays=len(manifest.digests), seconds=seconds)
        return saved, CheckpointsKept(checkpoints=self.kept())

    def _prune(self) -> None:
        kept = self.kept()
        best = min(kept, key=lambda info: info.rank)
        for info in kept[: -self._config.checkpoints.keep]:
            if info is not best:
                self._place.delete(info.step)

    def kept(self) -> list[CheckpointInfo]:
        found: list[CheckpointInfo] = []
        for step in self._place.steps():
            with contextlib.suppress(Damaged):
                found.append(read_manifest(self._place.path(step)).describe())
        return found

    def tell_kept(self) -> None:
        self._publish(CheckpointsKept(checkpoints=self.kept()))

    def tell(self) -> None:
        """Of a save that is over."""
        if self._saving is not None and self._saving.written.done():
            self.finish()

    def finish(self) -> None:
        """Waits for the save that goes on, if one does, and tells of it."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            receipts = saving.written.result()
        except Exception as error:
            self._failed(saving.step, problems_in(error))
        else:
            for receipt in receipts or ():
                self._publish(receipt)

    def _failed(self, step: int, problems: list[str]) -> None:
        if self._cluster.process == 0 and self._place.identity() == self._identity:
            with contextlib.suppress(OSError):  # Orbax may still write there: what stays goes the next time
                self._place.clear()
        self._publish(CheckpointFailed(step=step, problems=problems))

    def newest(self, step: int | None = None) -> Manifest | None:
        """Of the newest checkpoint whose files are good, or of the one of `step`; None where there is none at all.

        Sets aside those that are not good. Raises Invalid where there are some and none is.
        """
        self.finish()
        chosen = self._cluster.agree(lambda: self._newest(step), Chosen | None)
        return self._cluster.together(lambda: self._manifest(chosen)) if chosen else None

    def _manifest(self, chosen: Chosen) -> Manifest:
        """Raises Damaged where this process sees another one than process 0."""
        return read_manifest(self._place.path(chosen.step), chosen.sha256)

    def _newest(self, step: int | None) -> Chosen | None:
        found = self._place.steps()
        for candidate in [other for other in reversed(found) if step in (None, other)]:
            chosen = self._checked(candidate)
            if not chosen.problems:
                return chosen
            self._set_aside(candidate, Damaged(*chosen.problems))
        if step is not None:
            raise self._none_of(step)
        if found or self._place.aside():
            raise Invalid(f"{self._place.root}: no checkpoint is good, all were set aside: begin a new run")
        return None

    def load(self, step: int, program: Program) -> tuple[TrainState, Restored]:
        """The state under the program's shardings, its digests compared, and the receipt. Raises Damaged, and sets it
        aside; Invalid where there is none; Failure where it could not be loaded this time.

        Later checkpoints are set aside: the run goes on from here and saves those steps again.
        """
        self.finish()
        began = time.perf_counter()
        chosen = self._cluster.agree(lambda: self._known(step), Chosen)
        try:
            if chosen.problems:
                raise Damaged(*chosen.problems)
            manifest = self._cluster.together(lambda: self._manifest(chosen))
            abstract = program.placement.abstract_state(self._task)
            state = self._cluster.together(lambda: load_arrays(self._place.path(step), abstract))
            self._cluster.collectively(lambda: self._check(state, manifest, program))
        except Damaged as error:
            self._cluster.agree(partial(self._set_aside, step, error), None)
            raise
        rolled_back = self._cluster.agree(lambda: self._roll_back(step), list[int])
        self._saved_at = time.monotonic()
        return state, Restored(
            step=step,
            from_preset=manifest.preset,
            from_devices=manifest.devices,
            preset=program.name,
            arrays=len(manifest.digests),
            seconds=time.perf_counter() - began,
            digests_equal=True,
            digest=manifest.digest,
            rolled_back=rolled_back,
        )

    def _known(self, step: int) -> Chosen:
        """Raises Invalid where there is none."""
        if step not in self._place.steps():
            raise self._none_of(step)
        return self._checked(step)

    def _checked(self, step: int) -> Chosen:
        try:
            self._place.checked(step)
            return Chosen(step, manifest_digest(self._place.path(step)))
        except Damaged as error:
            return Chosen(step, problems=list(error.problems))

    def _check(self, state: TrainState, manifest: Manifest, program: Program) -> None:
        """Raises Damaged."""
        check_digests(state, state_names(self._task), manifest, program.digest)

    def _roll_back(self, step: int) -> list[int]:
        """Sets aside those of later steps."""
        later = [other for other in self._place.steps() if other > step]
        for other in later:
            self._place.set_aside(other, ROLLED_BACK)
        return later

    def _none_of(self, step: int) -> Invalid:
        known = ", ".join(map(str, self._place.steps())) or "none"
        return Invalid(f"no good checkpoint of step {step}: there is {known}")

    def _set_aside(self, step: int, error: Damaged) -> None:
        name = ""
        with contextlib.suppress(OSError):  # a directory that cannot be written: it is passed over all the same
            name = self._place.set_aside(step, DAMAGED)
        self._publish(CheckpointDamaged(step=step, problems=list(error.problems), set_aside=name))
        self.tell_kept()
