"""Copies in one process: they load bitwise equal under other presets; one that is damaged or incomplete is not used."""

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shardtui.engine.copies import host_memory
from shardtui.engine.copies.copies import Copies, key_problem
from shardtui.engine.copies.host_memory import HostMemory, shortage
from shardtui.engine.copies.memory_loader import MemoryLoader
from shardtui.engine.copies.part import FILES, Part, parts_in
from shardtui.engine.copies.shares import shares
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.leaves import bytes_of
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state
from shardtui.engine.spec.epoch import Copying
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.events import CopyFailed

from ..checkpoint.test_checkpoint import Bench, bits
from ..conftest import step
from ..programs import KINDS

EVERY = 2


@pytest.fixture(scope="module")
def state(task: Task, programs: dict[str, Program]) -> TrainState:
    """A state with the shardings of `fsdp`, after two steps, so that no array is all zeros."""
    return step(compile_initial_state(task, programs["fsdp"].placement)(), programs["fsdp"], steps=2)


@pytest.fixture
def bench(tmp_path: Path, task: Task) -> Bench:
    return Bench(tmp_path / "checkpoints", task)


@pytest.fixture
def loader(tmp_path: Path, bench: Bench) -> MemoryLoader:
    return made(tmp_path, bench, epoch=1)


def made(tmp_path: Path, bench: Bench, epoch: int) -> MemoryLoader:
    """What an epoch has of the copies in `tmp_path`."""
    folder, publish = tmp_path / "memory", bench.published.append
    folder.mkdir(exist_ok=True)
    copying = Copying(every_steps=EVERY, folder=str(folder))
    copies = Copies(copying, epoch, bench.saver, bench.task, Cluster(), publish, lambda: None)
    return MemoryLoader(copies, bench.task, Cluster(), publish)


def copy(copies: Copies, state: TrainState, program: Program, step: int) -> None:
    copies.begin(state, program, step, 2.0, None)
    until = time.monotonic() + 60
    while (ended := copies.ended()) is None:
        assert time.monotonic() < until, "the copy does not end"
        time.sleep(0.01)
    copies.settle(ended)


def problems(bench: Bench) -> list[str]:
    return [problem for event in bench.published if isinstance(event, CopyFailed) for problem in event.problems]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Makes the system refuse larger files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize("names", [["fsdp"], pytest.param(["tp", "dp"], marks=pytest.mark.slow)])
def test_a_copy_loads_under_any_preset(
    tmp_path: Path,
    loader: MemoryLoader,
    bench: Bench,
    programs: dict[str, Program],
    state: TrainState,
    names: list[str],
) -> None:
    copy(loader.copies, state, programs["fsdp"], 2)
    for name in names:
        found = made(tmp_path, bench, epoch=2)
        manifest = found.find()
        assert manifest and (manifest.step, manifest.preset, manifest.loss) == (2, "fsdp", 2.0)
        loaded, receipt = found.load(programs[name])
        assert bits(loaded) == bits(state), name
        assert (receipt.step, receipt.preset, receipt.from_memory) == (2, name, True)
        wanted = jax.tree.leaves(programs[name].placement.state_shardings)
        assert [leaf.sharding for leaf in jax.tree.leaves(loaded)] == wanted
    assert not problems(bench)


def test_copying_leaves_the_state_to_the_next_step(
    loader: MemoryLoader, programs: dict[str, Program], state: TrainState
) -> None:
    """A view of an array would keep the step from writing the new one in its place."""
    program = programs["fsdp"]
    before = jax.tree.map(jnp.copy, state)
    places = {leaf.unsafe_buffer_pointer() for leaf in shards(before)}
    copy(loader.copies, before, program, 2)
    after = step(before, program, steps=1)
    assert {leaf.unsafe_buffer_pointer() for leaf in shards(after)} == places


def shards(state: TrainState) -> list[jax.Array]:
    return [shard.data for leaf in jax.tree.leaves(state.params) for shard in leaf.addressable_shards]


def test_the_newest_complete_copy_is_kept(
    loader: MemoryLoader, programs: dict[str, Program], state: TrainState
) -> None:
    folder = loader.copies.folder
    for number in (2, 4):
        copy(loader.copies, state, programs["fsdp"], number)
    assert eventually(lambda: parts_in(folder) == [Part(4, 1, 0, 1)])
    loader.discard()
    assert parts_in(folder) == []


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_found_and_the_copy_not_used(
    tmp_path: Path, loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState, file: str
) -> None:
    copy(loader.copies, state, programs["fsdp"], 2)
    path = loader.copies.folder / Part(2, 1, 0, 1).name / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert made(tmp_path, bench, epoch=2).find() is None
    (problem,) = problems(bench)
    assert "a part of the copy of step 2, is damaged and not used" in problem


def test_a_part_that_is_missing_is_named(
    tmp_path: Path, loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    """As if another process, on a host that is gone, had copied the rest."""
    copy(loader.copies, state, programs["fsdp"], 2)
    folder = loader.copies.folder
    (folder / Part(2, 1, 0, 1).name).rename(folder / Part(2, 1, 0, 2).name)
    assert made(tmp_path, bench, epoch=2).find() is None
    (problem,) = problems(bench)
    assert "the copy of step 2 in host memory lacks what process 1 of 2 had" in problem


def test_a_copy_that_cannot_be_written_is_reported_and_the_one_before_kept(
    loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    copy(loader.copies, state, programs["fsdp"], 2)
    with files_of_at_most(1000):
        for number in (4, 6):
            copy(loader.copies, state, programs["fsdp"], number)
    assert problems(bench) == [f"{loader.copies.folder}: File too large"], "it is said once"
    assert eventually(lambda: parts_in(loader.copies.folder) == [Part(2, 1, 0, 1)])


def test_without_its_folder_a_run_goes_on(
    loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    copy(loader.copies, state, programs["fsdp"], 2)
    shutil.rmtree(loader.copies.folder)
    copy(loader.copies, state, programs["fsdp"], 4)
    assert problems(bench) == [f"{loader.copies.folder}: No such file or directory"]


def test_a_state_that_is_not_finite_is_not_copied(
    loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    broken = jax.tree.map(lambda leaf: leaf * np.nan if leaf.dtype == np.float32 else leaf + 0, state)
    copy(loader.copies, jax.device_put(broken, programs["fsdp"].placement.state_shardings), programs["fsdp"], 2)
    assert problems(bench) == ["a parameter or moment is not finite"]
    assert parts_in(loader.copies.folder) == []


def test_a_copy_that_is_due_while_another_is_written_is_left_out(
    loader: MemoryLoader, bench: Bench, programs: dict[str, Program], state: TrainState
) -> None:
    copies = loader.copies
    assert [copies.is_due(number) for number in (1, 2, 3)] == [False, True, False]
    copies.begin(state, programs["fsdp"], 2, 2.0, None)
    assert [copies.is_due(number) for number in (4, 6)] == [False, False]
    assert problems(bench) == ["copies take longer than 2 steps, some are left out: give a larger --copy-every"]
    copies.clear()
    assert copies.is_due(8)


def test_without_room_the_run_goes_on_without_copies(
    loader: MemoryLoader,
    bench: Bench,
    programs: dict[str, Program],
    state: TrainState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = list(os.statvfs(loader.copies.folder))
    status[3] = status[4] = 1  # free blocks
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(status))
    loader.copies.begin(state, programs["fsdp"], 2, 2.0, None)
    assert loader.copies.ended() is None
    (problem,) = problems(bench)
    assert "two copies of what this host keeps take 10.7 MB, but 4.1 kB are free: the run goes on without" in problem


def test_each_shard_is_copied_once(task: Task) -> None:
    for name in KINDS:
        abstract = place(task, load_preset(name), jax.devices()).abstract_state(task)
        found = shares(abstract, 1)
        for leaf, owners in zip(jax.tree.leaves(abstract), found.owners, strict=True):
            assert sum(np.prod([end - first for first, end in region]) for region in owners) == leaf.size
        assert found.bytes == [sum(bytes_of(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(abstract))]


@pytest.fixture
def host_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Takes the place of the folder in which all supervisors of this host keep theirs."""
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return tmp_path


def test_a_folder_in_memory_belongs_to_its_supervisor(host_folder: Path) -> None:
    with HostMemory("a-run") as memory:
        assert memory.folder.stat().st_mode & 0o777 == 0o700
        (memory.folder / "1-1-0-of-1").mkdir()
        with HostMemory("a-run") as other:
            assert other.folder != memory.folder
            assert memory.folder.exists(), "its supervisor lives"
        memory.clear()
        assert [path.name for path in memory.folder.iterdir()] == ["lock"]
    assert list(host_folder.iterdir()) == []


def test_folders_of_supervisors_that_were_killed_are_deleted(host_folder: Path) -> None:
    left = host_folder / "shardtui-a-run-x"
    left.mkdir()
    (left / "lock").touch()
    with HostMemory("another"):
        assert not left.exists()


def test_a_shortage_has_its_figures(tmp_path: Path) -> None:
    assert shortage(tmp_path, 0) == ""
    assert "two copies of what this host keeps take 123 TB" in shortage(tmp_path, 123 * 10**12)


def test_a_state_with_random_keys_is_not_copied() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert key_problem(["a", "b"], [jax.ShapeDtypeStruct((2,), jnp.float32)] * 2) == ""
    assert key_problem(["opt.noise", "b"], [key, jax.ShapeDtypeStruct((), jnp.uint32)]).startswith(
        "opt.noise: random keys are not copied to host memory: the run goes on without copies"
    )
