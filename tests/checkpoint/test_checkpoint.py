"""Checkpoints in one process: what is saved is what is loaded, anywhere, and what was damaged is named and kept."""

import gc
import json
import os
import queue
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from etils import epath
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.checkpoint.directory import Place, load_arrays, state_names, verify
from shardtui.engine.checkpoint.manifest import FILE_NAME, Manifest, edits, read_manifest, write_manifest
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.digest import linear_sums
from shardtui.engine.program.program import Program, compile_initial_state, place
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

CORPUS = CorpusInfo("text", 1, 1000, "ab" * 32)


@dataclass
class Bench:
    """A saver on a directory, and what it has told."""

    root: Path
    task: Task
    keep: int = 3
    told: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        config = msgspec.structs.replace(self.task.config, checkpoints=CheckpointConfig(keep=self.keep))
        self.place = Place(epath.Path(self.root))
        wake = queue.SimpleQueue[None]()
        self.saver = Saver(
            self.place, config, self.task, CORPUS, jax.devices(), Cluster(), self.told.append, lambda: wake.put(None)
        )

    def save(self, state: TrainState, program: Program, step: int, loss: float | None = 2.0) -> None:
        self.saver.save(state, program, step, loss)
        self.saver.finish()

    def kept(self) -> list[int]:
        """As it was told last."""
        return next(
            [info.step for info in e.checkpoints] for e in reversed(self.told) if isinstance(e, CheckpointsKept)
        )


@pytest.fixture
def bench(tmp_path: Path, task: Task) -> Bench:
    return Bench(tmp_path / "checkpoints", task)


@pytest.fixture(scope="module")
def state(task: Task, programs: dict[str, Program]) -> TrainState:
    """Under `fsdp`, after steps that leave something in every array."""
    return step(compile_initial_state(task, programs["fsdp"].placement)(), programs["fsdp"], steps=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, task: Task, programs: Any, state: TrainState) -> Path:
    """A directory with checkpoints 2 and 4 for tests to copy."""
    bench = Bench(tmp_path_factory.mktemp("saved"), task)
    for number in (2, 4):
        bench.save(state, programs["fsdp"], number)
    assert [type(event) for event in bench.told] == [CheckpointSaving, CheckpointSaved, CheckpointsKept] * 2
    return bench.root


@pytest.fixture
def copied(saved: Path, tmp_path: Path, task: Task) -> Bench:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return Bench(tmp_path / "checkpoints", task)


def bits(state: TrainState) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def test_saved_under_one_preset_and_loaded_under_every_other(
    copied: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    for program in programs.values():
        loaded, receipt = copied.saver.load(4, program)
        assert bits(loaded) == bits(state), program.name
        assert (receipt.from_preset, receipt.from_devices, receipt.preset) == ("fsdp", 8, program.name)
        for leaf, there in zip(
            jax.tree.leaves(loaded), jax.tree.leaves(program.placement.state_shardings), strict=True
        ):
            assert leaf.sharding == there


@pytest.mark.parametrize(("count", "preset"), [(4, "dp-tp2"), (4, "fsdp"), (1, "dp")])
def test_loaded_on_fewer_devices(saved: Path, task: Task, state: TrainState, count: int, preset: str) -> None:
    placement = place(task, read_preset(PRESETS / f"parallelism/{preset}.toml"), jax.devices()[:count])
    loaded = load_arrays(epath.Path(saved / "4"), placement.abstract_state(task))
    assert bits(loaded) == bits(state)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(loaded)} == {count}


def flipped(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 4]) + data[10:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (flipped, "its bytes are not those that were written"),
        (lambda data: data[:-1], "bytes, .* were written"),
        (lambda data: b"", ": 0 bytes, .* were written"),
        (lambda data: None, "No such file"),
    ],
    ids=["one bit flipped", "truncated", "emptied", "deleted"],
)
def test_a_damaged_file_is_named_and_its_checkpoint_set_aside(
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
    (damaged,) = [event for event in copied.told if isinstance(event, CheckpointDamaged)]
    assert (damaged.step, damaged.set_aside) == (4, "4.damaged")
    assert (copied.root / "4.damaged/arrays").is_dir()
    assert copied.place.aside() == ["4.damaged"]


def test_a_run_without_a_good_checkpoint_is_refused(copied: Bench) -> None:
    for number in (2, 4):
        (copied.root / str(number) / FILE_NAME).unlink()
    for _ in range(2):  # a run that is tried again does not begin anew either
        with pytest.raises(Invalid, match="no checkpoint is good, all were set aside: begin a new run"):
            copied.saver.newest()
    assert copied.place.aside() == ["2.damaged", "4.damaged"]
    with pytest.raises(Invalid, match="no good checkpoint of step 3: there is none"):
        copied.saver.newest(3)


@pytest.mark.parametrize("name", [FILE_NAME, "arrays/state/manifest.ocdbt", "arrays/state/ocdbt.process_9/d/planted"])
def test_a_fifo_in_a_checkpoint_is_damage(copied: Bench, name: str) -> None:
    """Also one that was put beside its files: what Orbax would make of it nobody knows."""
    path = copied.root / "4" / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(Damaged, match=f"{path.name}: (a FIFO, )?not a regular file"):
        copied.place.checked(4)
    found = {checked.step: checked.problems for checked in verify(copied.place, copied.task.config).checkpoints}
    assert not found[2]
    assert path.name in found[4][0]


def test_a_file_in_the_place_of_the_checkpoints_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.write_text("in the way")
    with pytest.raises(Invalid, match=f"{path}: cannot be read: Not a directory"):
        verify(Place(epath.Path(path)), tiny_config())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"loss":2.0', "not as it was written"),
        ('"digests":{', "not as it was written"),
        ("{", "not as it was written: "),
    ],
)
def test_a_manifest_is_sealed(copied: Bench, text: str, says: str) -> None:
    """Another figure in the place of one that is there, which JSON alone would accept."""
    path = copied.root / "4" / FILE_NAME
    assert text in path.read_text()
    path.write_text(
        path.read_text().replace(text, {"{": "["}.get(text, text.replace("2", "1").replace("{", '{"x":1,')), 1)
    )
    with pytest.raises(Damaged, match=f"{FILE_NAME}: {says}"):
        copied.place.checked(4)


def test_a_manifest_of_another_step_is_not_believed(copied: Bench) -> None:
    shutil.copytree(copied.root / "4", copied.root / "7")
    with pytest.raises(Damaged, match="it says that it is of step 4"):
        copied.place.checked(7)


def test_arrays_that_are_not_those_of_the_manifest_are_damaged(
    copied: Bench, task: Task, programs: dict[str, Program]
) -> None:
    """Files as they were written, and yet not what was saved: the digests alone can tell."""
    folder = epath.Path(copied.root / "4")
    manifest = read_manifest(folder)
    digests = {**manifest.digests, "norm.scale": 7}
    write_manifest(msgspec.structs.replace(manifest, digests=digests), folder)
    with pytest.raises(Damaged, match=r"norm.scale: digest [0-9a-f]{16}, 0{15}7 was saved"):
        copied.saver.load(4, programs["dp"])
    assert copied.place.aside() == ["4.damaged"]


def test_a_checkpoint_of_an_older_version_is_restored_and_said_to_be_one(
    copied: Bench, task: Task, programs: dict[str, Program]
) -> None:
    state, receipt = copied.saver.load(4, programs["dp"])
    assert receipt.digest == "mix64"
    folder = epath.Path(copied.root / "4")
    names, sums = state_names(task), np.asarray(jax.jit(linear_sums)(state)).tolist()
    older = msgspec.structs.replace(read_manifest(folder), digest="sum32", digests=dict(zip(names, sums, strict=True)))
    write_manifest(older, folder)
    _, receipt = copied.saver.load(4, programs["fsdp"])
    assert (receipt.step, receipt.digest, receipt.digests_equal) == (4, "sum32", True)
    write_manifest(msgspec.structs.replace(older, digests={**older.digests, names[0]: sums[0] ^ 1}), folder)
    with pytest.raises(Damaged, match=f"^{names[0]}: digest [0-9a-f]{{8}}, [0-9a-f]{{8}} was saved$"):
        copied.saver.load(4, programs["dp"])


def test_what_is_set_aside_takes_no_name_twice(copied: Bench) -> None:
    assert copied.place.set_aside(4, "damaged") == "4.damaged"
    copied.place.path(2).rename(copied.place.path(4))
    assert copied.place.set_aside(4, "damaged") == "4.damaged-2"
    assert (copied.place.steps(), copied.place.aside()) == ([], ["4.damaged", "4.damaged-2"])


def test_the_last_ones_are_kept_and_the_best(
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
    assert sum(isinstance(event, CheckpointSaving) for event in copied.told) == 1, "it was there already"


def test_what_a_killed_engine_left_unfinished_is_cleared_away(copied: Bench, task: Task) -> None:
    for name in ("saving-6", "deleting-1"):
        shutil.copytree(copied.root / "4/arrays", copied.root / name)
    again = Bench(copied.root, task)
    assert {path.name for path in again.root.iterdir()} == {"2", "4"}


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
    (bench.root / "saving-4").mkdir()  # of a save that failed before
    bench.save(
        state._replace(params=jax.device_put(params, jax.tree.map(lambda x: x.sharding, state.params))),
        programs["fsdp"],
        5,
    )
    (failed,) = bench.told
    assert isinstance(failed, CheckpointFailed)
    assert failed.problems == ["a parameter or moment is not finite: go back to a checkpoint from before"]
    assert list(bench.root.iterdir()) == []


def test_a_save_leaves_nothing_in_memory(
    tmp_path: Path, task: Task, programs: dict[str, Program], state: TrainState
) -> None:
    """Counted in Python's objects: tensorstore never frees hundreds of them where nobody keeps it from that."""
    bench = Bench(tmp_path / "checkpoints", task)

    def held_after(steps: range) -> int:
        for number in steps:
            bench.save(state, programs["fsdp"], number)
            assert bench.kept()[-1] == number
            bench.told.clear()
        gc.collect()
        return sys.getallocatedblocks()

    before = held_after(range(5))
    growth = (held_after(range(5, 30)) - before) / 25
    assert growth < 100


def test_a_directory_that_goes_away_fails_the_save_and_nothing_else(
    bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    bench.root.rmdir()
    bench.root.write_text("in the way")
    bench.save(state, programs["fsdp"], 5)
    (failed,) = [event for event in bench.told if isinstance(event, CheckpointFailed)]
    assert "the directory cannot be written" in failed.problems[0]
    assert "--checkpoint-dir" in failed.problems[0]
    bench.root.unlink()
    bench.save(state, programs["fsdp"], 6)
    assert bench.kept() == [6]


def test_what_a_run_may_not_go_on_from(saved: Path) -> None:
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
        "the model is not the one of the checkpoint: nano with layers 3, nano with layers 2 then: begin a new run with "
        "it"
    )
    assert problems(msgspec.structs.replace(config, seed=7)) == (
        "run.json: seed is 7, the checkpoint of step 4 was saved with 0: put that back, or begin a new run"
    )
    assert "999 bytes (sha256 cdcdcdcdcdcd) in other, 1,000 (abababababab) then" in problems(corpus=other)
    assert "--other-data" in problems(corpus=other)
    changed = {**manifest.arrays, "norm.scale": "float32 [7]", "norm.shift": "float32 [1]"}
    assert "norm.scale is float32 [7], was float32 [128]; norm.shift is float32 [1], was not there" in problems(
        arrays=changed
    )
    assert problems(corpus=other, how=Restart(other_data=True)) == ""
    assert problems(platform="tpu").endswith("if that is meant, add --platform tpu")
    assert problems(msgspec.structs.replace(config, platform="tpu"), platform="tpu") == ""
    assert problems(msgspec.structs.replace(config, steps=4)) == "--steps 4: 4 steps are done: give more"
    assert json.loads((saved / "4" / FILE_NAME).read_bytes())["manifest"]["step"] == 4


def test_settings_that_nobody_asked_for_are_named(saved: Path) -> None:
    manifest = read_manifest(epath.Path(saved / "4"))
    config = manifest.config

    def trained(**changes: Any) -> RunConfig:
        training = msgspec.structs.replace(config.training, **changes)
        return msgspec.structs.replace(config, training=training, steps=9, devices=4, data="other", preset="tp")

    edited = trained(learning_rate=3e-4, batch_size=8)
    assert edits(trained(), trained(), manifest) == []
    assert edits(trained(), edited, manifest) == [], "--set asked for it"
    assert edits(edited, trained(learning_rate=2e-4, batch_size=8), manifest) == [
        "run.json: batch_size is 8, the checkpoint of step 4 was saved with 16"
    ]
    assert edits(edited, edited, manifest)[1] == (
        "run.json: learning_rate is 0.0003, the checkpoint of step 4 was saved with 0.001"
    )
