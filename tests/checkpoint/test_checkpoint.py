"""Checkpoints in one process: they load bitwise equal under any preset; damaged ones are reported and set aside."""

import contextlib
import hashlib
import itertools
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from etils import epath
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint import lease, reading
from shardtui.engine.checkpoint.arrays import load_arrays
from shardtui.engine.checkpoint.directory import CheckpointDirectory, verify
from shardtui.engine.checkpoint.manifest import FILE_NAME, Manifest, edited_settings, read_manifest, write_manifest
from shardtui.engine.checkpoint.owned_directory import OwnedDirectory
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.outcomes import Damaged, Failure
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state
from shardtui.engine.spec.config import CheckpointConfig, Restart, RunConfig
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire.descriptions import CorpusInfo
from shardtui.engine.wire.events import (
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    CheckpointsKept,
    Event,
)

from ..conftest import step, tiny_config
from ..programs import Programs

CORPUS = CorpusInfo("text", 1, 1000, "ab" * 32)


@dataclass
class Bench:
    """A saver on a directory, and the events it has published."""

    root: Path
    task: Task
    keep: int = 3
    published: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        config = msgspec.structs.replace(self.task.config, checkpoints=CheckpointConfig(keep=self.keep))
        self.place = CheckpointDirectory(epath.Path(self.root))
        wake = queue.SimpleQueue[None]()
        shared = CORPUS, jax.devices(), Cluster(), self.published.append, lambda: wake.put(None)
        self.saver = Saver(self.place, config, self.task, *shared)
        self.own = self.saver._directory

    def save(self, state: TrainState, program: Program, step: int, loss: float | None = 2.0) -> None:
        self.saver.save(state, program, step, loss)
        self.saver.finish()

    def kept(self) -> list[int]:
        """Returns the steps in the last `CheckpointsKept`."""
        return next(
            [info.step for info in e.checkpoints] for e in reversed(self.published) if isinstance(e, CheckpointsKept)
        )


@pytest.fixture
def bench(tmp_path: Path, task: Task) -> Iterator[Bench]:
    bench = Bench(tmp_path / "checkpoints", task)
    yield bench
    bench.saver.close()


@pytest.fixture(scope="module")
def state(task: Task, programs: dict[str, Program]) -> TrainState:
    """A state with the shardings of `fsdp`, after two steps, so that no array is all zeros."""
    return step(compile_initial_state(task, programs["fsdp"].placement)(), programs["fsdp"], steps=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, task: Task, programs: Any, state: TrainState) -> Path:
    """A directory with checkpoints 2 and 4 for tests to copy."""
    bench = Bench(tmp_path_factory.mktemp("saved"), task)
    for number in (2, 4):
        bench.save(state, programs["fsdp"], number)
    assert [type(event) for event in bench.published] == [CheckpointSaving, CheckpointSaved, CheckpointsKept] * 2
    bench.saver.close()
    return bench.root


@pytest.fixture
def copied(saved: Path, tmp_path: Path, task: Task) -> Iterator[Bench]:
    shutil.copytree(saved, tmp_path / "checkpoints")
    copied = Bench(tmp_path / "checkpoints", task)
    yield copied
    copied.saver.close()


def bits(state: TrainState) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.mark.core
def test_a_checkpoint_loads_under_every_preset(copied: Bench, programs: Programs, state: TrainState) -> None:
    for program in map(programs.layout, programs):
        loaded, receipt = copied.saver.load(4, program)
        assert bits(loaded) == bits(state), program.name
        assert (receipt.from_preset, receipt.from_devices, receipt.preset) == ("fsdp", 8, program.name)
        assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == program.placement.state_shardings


@pytest.mark.parametrize(("count", "preset"), [(4, "dp-tp2"), (4, "fsdp"), (1, "dp")])
def test_a_checkpoint_loads_on_fewer_devices(
    saved: Path, task: Task, state: TrainState, count: int, preset: str
) -> None:
    placement = place(task, read_preset(PRESETS / f"parallelism/{preset}.toml"), jax.devices()[:count])
    loaded = load_arrays(epath.Path(saved / "4"), placement.abstract_state(task))
    assert bits(loaded) == bits(state)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(loaded)} == {count}


def flipped(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 4]) + data[10:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (flipped, "its content has changed since it was written"),
        (lambda data: data[:-1], "bytes, .* when written"),
        (lambda data: b"", ": 0 bytes, .* when written"),
        (lambda data: None, "No such file"),
    ],
    ids=["one bit flipped", "truncated", "emptied", "deleted"],
)
def test_a_damaged_file_is_reported_and_its_checkpoint_set_aside(
    copied: Bench, change: Callable[[bytes], bytes | None], says: str
) -> None:
    file = next(path for path in (copied.root / "4/arrays").rglob("d/*") if path.stat().st_size > 9)
    data = change(file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    with pytest.raises(Damaged, match=rf"d/{file.name}: .*{says}|d/{file.name}{says}"):
        copied.place.checked(4)
    (found,) = [info for info in verify(copied.place, copied.task.config).checkpoints if info.problems]
    assert found.step == 4
    newest = copied.saver.newest()
    assert newest is not None
    assert newest.step == 2
    (damaged,) = [event for event in copied.published if isinstance(event, CheckpointDamaged)]
    assert (damaged.step, damaged.set_aside) == (4, "4.damaged")
    assert (copied.root / "4.damaged/arrays").is_dir()
    assert copied.place.aside() == ["4.damaged"]


FAILS = Path("/proc/self/mem")
"""A regular file whose bytes cannot be read: EIO."""


@pytest.mark.parametrize("name", [FILE_NAME, "arrays/state/manifest.ocdbt", ""])
def test_a_checkpoint_that_cannot_be_read_is_not_damaged(
    copied: Bench, monkeypatch: pytest.MonkeyPatch, programs: dict[str, Program], state: TrainState, name: str
) -> None:
    """Nothing is renamed or deleted, and no run begins anew; once the storage works, it is the newest as before."""
    path, hidden = copied.root / "4" / name, copied.root.parent / "hidden"
    path.rename(hidden)
    path.symlink_to(FAILS if name else path)  # a loop cannot be listed
    before = {path.name for path in copied.root.iterdir()}

    def repair(_: float) -> None:
        path.unlink()
        hidden.rename(path)

    with monkeypatch.context() as patched:
        patched.setattr(reading, "PAUSES", [0.0, 0.0])
        for attempt in (copied.saver.newest, lambda: copied.saver.load(4, programs["dp"])):
            with pytest.raises(Failure, match=r"cannot be read: .*nothing was changed: try again"):
                attempt()
        (found,) = [info for info in verify(copied.place, copied.task.config).checkpoints if info.problems]
        assert "cannot be read" in found.problems[0]
        if path.name == FILE_NAME:
            for step in (6, 8, 10):
                copied.save(state, programs["fsdp"], step, 1.0)
            before |= {"6", "8", "10"}  # without 4, these would be kept alone
        assert {path.name for path in copied.root.iterdir()} == before
        patched.setattr("time.sleep", repair)  # in the first pause
        newest = copied.saver.newest(4)
    assert newest is not None
    assert newest.step == 4
    assert not [event for event in copied.published if isinstance(event, CheckpointDamaged)]


def test_a_directory_that_cannot_be_listed_is_not_empty(copied: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.root.rename(copied.root.parent / "hidden")
    copied.root.symlink_to(copied.root)
    monkeypatch.setattr(reading, "PAUSES", [0.0])
    with pytest.raises(Failure, match="cannot be read"):
        copied.saver.newest()
    with pytest.raises(UserError, match="cannot be read"):
        verify(copied.place, copied.task.config)


def test_a_checkpoint_of_another_version_is_refused_and_not_renamed(copied: Bench) -> None:
    path = copied.root / "4" / FILE_NAME
    for change in ({"schema": 2}, {"shards": 7}):
        manifest = json.loads(path.read_bytes())["manifest"] | change
        body = json.dumps(manifest)
        path.write_text(f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}", "manifest": {body}}}')
        with pytest.raises(Failure, match="intact, but another version of shardtui wrote it"):
            copied.saver.newest()
    assert copied.place.steps() == [2, 4]


def test_a_run_without_a_good_checkpoint_is_refused(copied: Bench) -> None:
    for number in (2, 4):
        (copied.root / str(number) / FILE_NAME).unlink()
    for _ in range(2):  # a second attempt does not begin a new run either
        with pytest.raises(UserError, match="no intact checkpoint, all were set aside: start a new run"):
            copied.saver.newest()
    assert copied.place.aside() == ["2.damaged", "4.damaged"]
    with pytest.raises(UserError, match="no intact checkpoint of step 3: there are none"):
        copied.saver.newest(3)


@pytest.mark.parametrize("name", [FILE_NAME, "arrays/state/manifest.ocdbt", "arrays/state/ocdbt.process_9/d/planted"])
def test_a_fifo_in_a_checkpoint_is_damage(copied: Bench, name: str) -> None:
    """Also an additional one, which Orbax might read."""
    path = copied.root / "4" / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(Damaged, match=f"{path.name}: (a FIFO, )?not a regular file"):
        copied.place.checked(4)
    found = {checked.step: checked.problems for checked in verify(copied.place, copied.task.config).checkpoints}
    assert not found[2]
    assert path.name in found[4][0]


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.write_text("in the way")
    with pytest.raises(UserError, match=f"{path}: cannot be read: Not a directory"):
        verify(CheckpointDirectory(epath.Path(path)), tiny_config())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"loss":2.0', "changed since it was written"),
        ('"digests":{', "changed since it was written"),
        ("{", "changed since it was written: "),
    ],
)
def test_a_manifest_is_sealed(copied: Bench, text: str, says: str) -> None:
    """Changed values that are valid JSON are found."""
    path = copied.root / "4" / FILE_NAME
    assert text in path.read_text()
    path.write_text(
        path.read_text().replace(text, {"{": "["}.get(text, text.replace("2", "1").replace("{", '{"x":1,')), 1)
    )
    with pytest.raises(Damaged, match=f"{FILE_NAME}: {says}"):
        copied.place.checked(4)


def test_a_manifest_of_another_step_is_damage(copied: Bench) -> None:
    shutil.copytree(copied.root / "4", copied.root / "7")
    with pytest.raises(Damaged, match="its manifest names step 4"):
        copied.place.checked(7)


def test_arrays_that_differ_from_the_digests_are_damaged(
    copied: Bench, task: Task, programs: dict[str, Program]
) -> None:
    """The files are unchanged, but not what was saved: only the digests show it."""
    folder = epath.Path(copied.root / "4")
    manifest = read_manifest(folder)
    digests = {**manifest.digests, "norm.scale": 7}
    write_manifest(msgspec.structs.replace(manifest, digests=digests), folder)
    with pytest.raises(Damaged, match=r"norm.scale: digest [0-9a-f]{16}, 0{15}7 when saved"):
        copied.saver.load(4, programs["dp"])
    assert copied.place.aside() == ["4.damaged"]


def test_names_set_aside_are_unique(copied: Bench) -> None:
    assert copied.own.set_aside(4, "damaged") == "4.damaged"
    copied.place.path(2).rename(copied.place.path(4))
    assert copied.own.set_aside(4, "damaged") == "4.damaged-2"
    assert (copied.place.steps(), copied.place.aside()) == ([], ["4.damaged", "4.damaged-2"])


def test_the_latest_and_the_best_checkpoints_are_kept(
    tmp_path: Path, task: Task, programs: dict[str, Program], state: TrainState
) -> None:
    bench = Bench(tmp_path / "checkpoints", task, keep=2)
    for number, loss in enumerate((3.0, 1.0, None, 2.0, 2.5)):
        bench.save(state, programs["fsdp"], number, loss)
    assert bench.kept() == [1, 3, 4] == bench.place.steps()


def test_after_a_rollback_the_later_steps_are_saved_again(
    copied: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    loaded, receipt = copied.saver.load(2, programs["fsdp"])
    assert receipt.rolled_back == [4]
    assert (copied.place.steps(), copied.place.aside()) == ([2], ["4.rolled-back"])
    copied.save(loaded, programs["fsdp"], 4)
    assert copied.place.checked(4).step == 4
    copied.save(loaded, programs["fsdp"], 4)
    assert sum(isinstance(event, CheckpointSaving) for event in copied.published) == 1, "the checkpoint existed already"


def test_unfinished_checkpoints_of_a_killed_engine_are_deleted(copied: Bench, task: Task) -> None:
    for name in ("saving-aa-6", "deleting-aa-1"):
        shutil.copytree(copied.root / "4/arrays", copied.root / name)
    copied.saver.close()
    again = Bench(copied.root, task)
    assert {path.name for path in again.root.iterdir()} == {"2", "4", lease.FILE_NAME}
    again.saver.close()


def test_only_plain_numbers_are_steps(copied: Bench) -> None:
    for name in ("-1", "007", "1e3", "9" * 40, "٣", "5 ", "latest", ".6", "8.orbax-checkpoint-tmp-0"):
        (copied.root / name).mkdir()
    assert copied.place.steps() == [2, 4]
    newest = copied.saver.newest()
    assert newest is not None
    assert newest.step == 4


def test_a_state_that_is_not_finite_is_not_saved(bench: Bench, programs: dict[str, Program], state: TrainState) -> None:
    scale = state.params["norm"]["scale"]
    params = {**state.params, "norm": {**state.params["norm"], "scale": scale.at[3].set(jnp.nan)}}
    (bench.root / "saving-aa-4").mkdir()  # left over from a failed save
    params = jax.device_put(params, jax.tree.map(lambda x: x.sharding, state.params))
    bench.save(state._replace(params=params), programs["fsdp"], 5)
    (failed,) = bench.published
    assert isinstance(failed, CheckpointFailed)
    assert failed.problems == ["a parameter or moment is not finite: go back to a checkpoint from before"]
    assert list(bench.root.iterdir()) == [bench.root / lease.FILE_NAME]


def test_a_removed_directory_fails_only_the_save(bench: Bench, programs: dict[str, Program], state: TrainState) -> None:
    shutil.rmtree(bench.root)
    bench.root.write_text("in the way")
    bench.save(state, programs["fsdp"], 5)
    (failed,) = [event for event in bench.published if isinstance(event, CheckpointFailed)]
    assert "the directory cannot be written" in failed.problems[0]
    assert "--checkpoint-dir" in failed.problems[0]
    bench.root.unlink()
    bench.save(state, programs["fsdp"], 6)
    assert bench.kept() == [6]


def test_a_run_refuses_to_resume_from_a_checkpoint_that_does_not_match(saved: Path) -> None:
    manifest: Manifest = read_manifest(epath.Path(saved / "4"))
    config, restart = manifest.config, Restart()
    wider = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, layers=3))
    other = CorpusInfo("other", 1, 999, "cd" * 32)

    def problems(
        config: Any = config,
        corpus: CorpusInfo = CORPUS,
        platform: str = "cpu",
        how: Restart = restart,
        arrays: dict[str, str] = manifest.arrays,
    ) -> str:
        return "\n".join(manifest.problems_with(config, arrays, corpus, platform, how))

    assert problems() == ""
    assert problems(wider) == (
        "the model is nano with layers 3, but nano with layers 2 in the checkpoint: start a new run with it"
    )
    assert problems(msgspec.structs.replace(config, seed=7)) == (
        "run.json: seed is 7, but the checkpoint of step 4 was saved with 0: restore it, or start a new run"
    )
    assert "999 bytes (sha256 cdcdcdcdcdcd) in other, 1,000 (abababababab) when saved" in problems(corpus=other)
    assert "--other-data" in problems(corpus=other)
    changed = {**manifest.arrays, "norm.scale": "float32 [7]", "norm.shift": "float32 [1]"}
    assert "norm.scale is float32 [7], was float32 [128]; norm.shift is float32 [1], was absent" in problems(
        arrays=changed
    )
    assert problems(corpus=other, how=Restart(other_data=True)) == ""
    assert problems(platform="tpu").endswith("to resume on it, add --platform tpu")
    assert problems(msgspec.structs.replace(config, platform="tpu"), platform="tpu") == ""
    assert problems(msgspec.structs.replace(config, steps=4)) == "--steps 4: 4 steps are already done: give more"
    assert json.loads((saved / "4" / FILE_NAME).read_bytes())["manifest"]["step"] == 4


def test_settings_changed_without_set_are_reported(saved: Path) -> None:
    manifest = read_manifest(epath.Path(saved / "4"))
    config = manifest.config

    def trained(**changes: Any) -> RunConfig:
        training = msgspec.structs.replace(config.training, **changes)
        return msgspec.structs.replace(config, training=training, steps=9, devices=4, data="other", preset="tp")

    edited = trained(learning_rate=3e-4, batch_size=8)
    assert edited_settings(trained(), trained(), manifest) == []
    assert edited_settings(trained(), edited, manifest) == [], "--set changed it"
    assert edited_settings(edited, trained(learning_rate=2e-4, batch_size=8), manifest) == [
        "run.json: batch_size is 8, but the checkpoint of step 4 was saved with 16"
    ]
    assert edited_settings(edited, edited, manifest)[1] == (
        "run.json: learning_rate is 0.0003, but the checkpoint of step 4 was saved with 0.001"
    )


def test_what_a_failed_save_left_is_deleted_while_something_changes_there(tmp_path: Path) -> None:
    directory = OwnedDirectory.take(CheckpointDirectory(epath.Path(tmp_path)), Cluster(), UserError)
    unfinished = tmp_path / "saving-aa-8"
    unfinished.mkdir()
    end = time.monotonic() + 0.5

    def write() -> None:
        with contextlib.suppress(FileNotFoundError):  # it was deleted
            for number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
                (unfinished / str(number)).touch()
                (unfinished / "lock").touch()
                (unfinished / "lock").unlink(missing_ok=True)

    writer = threading.Thread(target=write)
    writer.start()
    directory.clear()
    writer.join()
    assert list(tmp_path.iterdir()) == [tmp_path / lease.FILE_NAME]


def test_what_another_holder_begins_is_not_deleted_with_what_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = OwnedDirectory.take(CheckpointDirectory(epath.Path(tmp_path)), Cluster(), UserError)
    (tmp_path / "saving-aa-8").mkdir()
    real = lease.Lease.check

    def check(own: lease.Lease) -> None:
        real(own)
        (tmp_path / "saving-bb-8").mkdir(exist_ok=True)

    monkeypatch.setattr(lease.Lease, "check", check)
    directory.clear()
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["saving-bb-8"]
