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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

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
from shardtui.engine.spec.attempt import Attempt
from shardtui.engine.spec.config import CheckpointConfig, Restart, RunConfig
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.descriptions import CorpusInfo

from ..conftest import step
from ..programs import Programs

T = TypeVar("T")
CORPUS = CorpusInfo("text", 1, 1000, "ab" * 32)


@dataclass
class Bench:
    """A saver on a directory, the state that it saves, and the events it has published."""

    root: Path
    task: Task
    program: Program
    state: TrainState
    keep: int = 3
    published: list[wire.Event] = field(default_factory=list[wire.Event])

    def __post_init__(self) -> None:
        config = msgspec.structs.replace(self.task.config, checkpoints=CheckpointConfig(keep=self.keep))
        self.place = CheckpointDirectory(epath.Path(self.root))
        wake = queue.SimpleQueue[None]()
        shared = CORPUS, Cluster(), self.published.append, lambda: wake.put(None)
        self.saver = Saver(self.place, config, self.task, *shared)
        self.own = self.saver._directory

    def save(self, step: int, loss: float | None = 2.0) -> None:
        self.saver.save(self.state, self.program, step, loss)
        self.saver.finish()

    def newest(self, step: int | None = None) -> int:
        found = self.saver.newest(step)
        assert found is not None
        return found.step

    def named(self, kind: type[T]) -> list[T]:
        return [event for event in self.published if isinstance(event, kind)]

    def kept(self) -> list[int]:
        """Returns the steps in the last `wire.CheckpointsKept`."""
        return [info.step for info in self.named(wire.CheckpointsKept)[-1].checkpoints]

    def problems(self) -> dict[int, list[str]]:
        """Returns what `verify` says of each checkpoint."""
        return {info.step: info.problems for info in verify(self.place, self.task.config).checkpoints}


@pytest.fixture(scope="module")
def state(task: Task, programs: dict[str, Program]) -> TrainState:
    """A state with the shardings of `fsdp`, after two steps, so that no array is all zeros."""
    return step(compile_initial_state(programs["fsdp"].placement)(), programs["fsdp"], steps=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, task: Task, programs: Any, state: TrainState) -> Path:
    """A directory with checkpoints 2 and 4 for tests to copy."""
    bench = Bench(tmp_path_factory.mktemp("saved"), task, programs["fsdp"], state)
    for number in (2, 4):
        bench.save(number)
    assert [type(event) for event in bench.published] == [
        wire.CheckpointSaving,
        wire.CheckpointsKept,
        wire.CheckpointSaved,
    ] * 2
    bench.saver.close()
    return bench.root


@pytest.fixture
def manifest(saved: Path) -> Manifest:
    return read_manifest(epath.Path(saved / "4"))


@pytest.fixture
def bench(tmp_path: Path, task: Task, programs: Any, state: TrainState) -> Iterator[Bench]:
    bench = Bench(tmp_path / "checkpoints", task, programs["fsdp"], state, keep=2)
    yield bench
    bench.saver.close()


@pytest.fixture
def copied(saved: Path, tmp_path: Path, task: Task, programs: Any, state: TrainState) -> Iterator[Bench]:
    shutil.copytree(saved, tmp_path / "copied")
    copied = Bench(tmp_path / "copied", task, programs["fsdp"], state)
    yield copied
    copied.saver.close()


def bits(state: TrainState) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.mark.core
def test_a_checkpoint_loads_under_every_preset(copied: Bench, programs: Programs) -> None:
    for program in map(programs.layout, programs):
        loaded, receipt = copied.saver.load(4, program), copied.named(wire.Restored)[-1]
        assert bits(loaded) == bits(copied.state), program.name
        assert (receipt.from_preset, receipt.from_devices, receipt.preset) == ("fsdp", 8, program.name)
        assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == program.placement.state_shardings


@pytest.mark.parametrize(("count", "preset"), [(4, "dp-tp2"), (4, "fsdp"), (1, "dp")])
def test_a_checkpoint_loads_on_fewer_devices(
    saved: Path, task: Task, state: TrainState, count: int, preset: str
) -> None:
    placement = place(task, read_preset(PRESETS / f"parallelism/{preset}.toml"), jax.devices()[:count])
    loaded = load_arrays(epath.Path(saved / "4"), placement.abstract_state)
    assert bits(loaded) == bits(state)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(loaded)} == {count}


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:9] + bytes([data[9] ^ 4]) + data[10:])


def put_a_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def with_text(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("", flip, "its content has changed since it was written"),
        ("", lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, .* when written"),
        ("", lambda path: os.truncate(path, 0), r"(?<!\d)0 bytes, .* when written"),
        ("", Path.unlink, "No such file"),
        (FILE_NAME, put_a_fifo, "not a regular file"),
        ("arrays/state/manifest.ocdbt", put_a_fifo, "not a regular file"),
        ("arrays/state/ocdbt.process_9/d/planted", put_a_fifo, "not a regular file"),  # Orbax might read it
        (FILE_NAME, with_text('"loss":2.0', '"loss":1.0'), "changed since it was written"),  # it is valid JSON
        (FILE_NAME, with_text('"digests":{', '"digests":{"x":1,'), "changed since it was written"),
        (FILE_NAME, with_text("{", "["), "changed since it was written: "),
    ],
)
def test_damage_is_reported_and_the_checkpoint_set_aside(
    copied: Bench, name: str, change: Callable[[Path], object], says: str
) -> None:
    folder = copied.root / "4"
    path = folder / name if name else max(folder.rglob("d/*"), key=lambda path: path.stat().st_size)
    change(path)
    with pytest.raises(Damaged, match=f"{path.name}: .*{says}"):
        copied.place.checked(4)
    found = copied.problems()
    assert (found[2], path.name in found[4][0]) == ([], True)
    assert copied.newest() == 2
    (damaged,) = copied.named(wire.CheckpointDamaged)
    assert (damaged.step, damaged.set_aside) == (4, "4.damaged")
    assert (copied.root / "4.damaged/arrays").is_dir()
    assert copied.place.aside() == ["4.damaged"]


FAILS = Path("/proc/self/mem")
"""A regular file whose bytes cannot be read: EIO."""


@pytest.mark.parametrize("name", [FILE_NAME, "arrays/state/manifest.ocdbt", ""])
def test_a_checkpoint_that_cannot_be_read_is_not_damaged(
    copied: Bench, monkeypatch: pytest.MonkeyPatch, name: str
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
        for attempt in (copied.newest, lambda: copied.saver.load(4, copied.program)):
            with pytest.raises(Failure, match=r"cannot be read: .*nothing was changed: try again"):
                attempt()
        ((problem, *_),) = filter(None, copied.problems().values())
        assert "cannot be read" in problem
        if path.name == FILE_NAME:
            for step in (6, 8, 10):
                copied.save(step, 1.0)
            before |= {"6", "8", "10"}  # without 4, these would be kept alone
        assert {path.name for path in copied.root.iterdir()} == before
        patched.setattr("time.sleep", repair)  # in the first pause
        assert copied.newest(4) == 4
    assert not copied.named(wire.CheckpointDamaged)


def test_a_directory_that_cannot_be_listed_is_not_empty(copied: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.root.rename(copied.root.parent / "hidden")
    copied.root.symlink_to(copied.root)
    monkeypatch.setattr(reading, "PAUSES", [0.0])
    with pytest.raises(Failure, match="cannot be read"):
        copied.newest()
    with pytest.raises(UserError, match="cannot be read"):
        copied.problems()
    copied.root.unlink()
    copied.root.write_text("in the way")
    with pytest.raises(UserError, match=f"{copied.root}: cannot be read: Not a directory"):
        copied.problems()


def test_a_checkpoint_of_another_version_is_refused_and_not_renamed(copied: Bench) -> None:
    path = copied.root / "4" / FILE_NAME
    for change in ({"schema": 2}, {"shards": 7}):
        manifest = json.loads(path.read_bytes())["manifest"] | change
        body = json.dumps(manifest)
        path.write_text(f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}", "manifest": {body}}}')
        with pytest.raises(Failure, match="intact, but another version of shardtui wrote it"):
            copied.newest()
    assert copied.place.steps() == [2, 4]


def test_a_run_without_a_good_checkpoint_is_refused(copied: Bench) -> None:
    for number in (2, 4):
        (copied.root / str(number) / FILE_NAME).unlink()
    for _ in range(2):  # a second attempt does not begin a new run either
        with pytest.raises(UserError, match="no intact checkpoint, all were set aside: start a new run"):
            copied.newest()
    assert copied.place.aside() == ["2.damaged", "4.damaged"]
    with pytest.raises(UserError, match="no intact checkpoint of step 3: there are none"):
        copied.newest(3)


def test_a_manifest_of_another_step_is_damage(copied: Bench) -> None:
    shutil.copytree(copied.root / "4", copied.root / "7")
    with pytest.raises(Damaged, match="its manifest names step 4"):
        copied.place.checked(7)


def test_arrays_that_differ_from_the_digests_are_damaged(copied: Bench, manifest: Manifest) -> None:
    """The files are unchanged, but not what was saved: only the digests show it."""
    digests = {**manifest.digests, "norm.scale": 7}
    write_manifest(msgspec.structs.replace(manifest, digests=digests), epath.Path(copied.root / "4"))
    with pytest.raises(Damaged, match=r"norm.scale: digest [0-9a-f]{16}, 0{15}7 when saved"):
        copied.saver.load(4, copied.program)
    assert copied.place.aside() == ["4.damaged"]


def test_names_set_aside_are_unique(copied: Bench) -> None:
    assert copied.own.set_aside(4, "damaged") == "4.damaged"
    copied.place.path(2).rename(copied.place.path(4))
    assert copied.own.set_aside(4, "damaged") == "4.damaged-2"
    assert (copied.place.steps(), copied.place.aside()) == ([], ["4.damaged", "4.damaged-2"])


def test_a_manifest_has_the_devices_that_train(bench: Bench, programs: Programs) -> None:
    """They are fewer than all that the run has if it does not fit those that are left."""
    program, digests = programs.layout("fsdp", jax.devices()[:4]), np.zeros((len(jax.tree.leaves(bench.state)), 2))
    assert bench.saver._manifest(program, 2, digests, None, None).devices == 4  # type: ignore[arg-type]


def test_the_latest_and_the_best_checkpoints_are_kept(bench: Bench) -> None:
    for number, loss in enumerate((3.0, 1.0, None, 2.0, 2.5)):
        bench.save(number, loss)
    assert bench.kept() == [1, 3, 4] == bench.place.steps()


def test_after_a_rollback_the_later_steps_are_saved_again(copied: Bench) -> None:
    copied.saver.load(2, copied.program)
    (receipt,) = copied.named(wire.Restored)
    assert receipt.rolled_back == [4]
    assert (copied.place.steps(), copied.place.aside()) == ([2], ["4.rolled-back"])
    for _ in range(2):
        copied.save(4)
        assert copied.place.checked(4).step == 4
    assert len(copied.named(wire.CheckpointSaving)) == 1, "the checkpoint existed already"


def test_unfinished_checkpoints_of_a_killed_engine_are_deleted(copied: Bench) -> None:
    for name in ("saving-aa-6", "deleting-aa-1"):
        shutil.copytree(copied.root / "4/arrays", copied.root / name)
    copied.saver.close()
    again = replace(copied)
    assert {path.name for path in again.root.iterdir()} == {"2", "4", lease.FILE_NAME}
    again.saver.close()


def test_only_plain_numbers_are_steps(copied: Bench) -> None:
    for name in ("-1", "007", "1e3", "9" * 40, "٣", "5 ", "latest", ".6", "8.orbax-checkpoint-tmp-0"):
        (copied.root / name).mkdir()
    assert copied.place.steps() == [2, 4]
    assert copied.newest() == 4


def test_a_state_that_is_not_finite_is_not_saved(bench: Bench) -> None:
    norm = bench.state.params["norm"]
    scale = jax.device_put(norm["scale"].at[3].set(jnp.nan), norm["scale"].sharding)
    (bench.root / "saving-aa-4").mkdir()  # left over from a failed save
    bench.state = bench.state._replace(params={**bench.state.params, "norm": {**norm, "scale": scale}})
    bench.save(5)
    (failed,) = bench.published
    assert isinstance(failed, wire.CheckpointFailed)
    assert failed.problems == ["a parameter or moment is not finite: go back to a checkpoint from before"]
    assert list(bench.root.iterdir()) == [bench.root / lease.FILE_NAME]


def test_a_removed_directory_fails_only_the_save(bench: Bench) -> None:
    shutil.rmtree(bench.root)
    bench.root.write_text("in the way")
    bench.save(5)
    (failed,) = bench.named(wire.CheckpointFailed)
    assert "the directory cannot be written" in failed.problems[0]
    assert "--checkpoint-dir" in failed.problems[0]
    bench.root.unlink()
    bench.save(6)
    assert bench.kept() == [6]


def test_a_run_refuses_to_resume_from_a_checkpoint_that_does_not_match(manifest: Manifest) -> None:
    config, other = manifest.config, CorpusInfo("other", 1, 999, "cd" * 32)

    def problems(
        corpus: CorpusInfo = CORPUS,
        here: str = "cpu",
        how: Restart | None = None,
        arrays: dict[str, str] = manifest.arrays,
        **changes: Any,
    ) -> str:
        changed = msgspec.structs.replace(config, **changes)
        return "\n".join(manifest.problems_with(changed, arrays, corpus, here, how or Restart()))

    assert problems() == ""
    assert problems(model=msgspec.structs.replace(config.model, layers=3)) == (
        "the model is nano with layers 3, but nano with layers 2 in the checkpoint: start a new run with it"
    )
    assert problems(seed=7) == (
        "run.json: seed is 7, but the checkpoint of step 4 was saved with 0: restore it, or start a new run"
    )
    assert "999 bytes (sha256 cdcdcdcdcdcd) in other, 1,000 (abababababab) when saved" in problems(other)
    assert "--other-data" in problems(other)
    assert problems(other, how=Restart(other_data=True)) == ""
    changed = {**manifest.arrays, "norm.scale": "float32 [7]", "norm.shift": "float32 [1]"}
    says = "norm.scale is float32 [7], was float32 [128]; norm.shift is float32 [1], was absent"
    assert says in problems(arrays=changed)
    assert problems(here="tpu").endswith("to resume on it, add --platform tpu")
    assert problems(here="tpu", platform="tpu") == ""
    assert problems(steps=4) == "--steps 4: 4 steps already done: give more"
    again = Restart(attempt=Attempt(number=2, supervisor=1))
    assert problems(how=again, steps=4) == "", "it was lost after its last step"
    assert problems(how=again, steps=3) == "--steps 3: 4 steps already done: give more"


def test_settings_changed_without_set_are_reported(manifest: Manifest) -> None:
    config = manifest.config

    def trained(**changes: Any) -> RunConfig:
        training = msgspec.structs.replace(config.training, **changes)
        return msgspec.structs.replace(config, training=training, steps=9, devices=4, data="other", preset="tp")

    edited = trained(learning_rate=3e-4, batch_size=8)
    assert edited_settings(trained(), trained(), manifest) == []
    assert edited_settings(trained(), edited, manifest) == [], "--set changed it"
    batch_size, learning_rate = (
        f"run.json: {name} is {value}, but the checkpoint of step 4 was saved with {saved}"
        for name, value, saved in (("batch_size", 8, 16), ("learning_rate", 0.0003, 0.001))
    )
    assert edited_settings(edited, trained(learning_rate=2e-4, batch_size=8), manifest) == [batch_size]
    assert edited_settings(edited, edited, manifest) == [batch_size, learning_rate]


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
