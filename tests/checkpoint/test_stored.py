"""Checkpoints are verified against their manifest: every array is found, and no code of the model runs."""

import re
import shutil
from pathlib import Path

import jax
import msgspec
import pytest
from etils import epath
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint import lease
from shardtui.engine.checkpoint.arrays import load_arrays, save_arrays
from shardtui.engine.checkpoint.directory import CheckpointDirectory, array_types, state_names, verify
from shardtui.engine.checkpoint.manifest import FILE_NAME, Manifest, file_digests, read_manifest, write_manifest
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task
from shardtui.engine.program.digest import digests, joined
from shardtui.engine.program.placement import place
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import CorpusInfo

from ..command import answered
from ..conftest import TINY, tiny_config
from ..schemas import checked

MODEL = """
from pathlib import Path
import jax.numpy as jnp, numpy as np, optax
from flax import nnx

Path(__file__).with_name("it-ran").touch()

class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(8, 8, kernel_init=nnx.initializers.ones, rngs=rngs) for _ in range(11)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

def loss(model, batch):
    return model(batch).mean()

def batch(step, batch_size):
    return np.ones((batch_size, 8), np.float32)
"""

EMPTY = "self.none = nnx.Param(jnp.zeros((0, 8)))\n        self.norm ="
ODD = "self.odd = nnx.BatchStat(jnp.zeros(8, jnp.uint4))\n        self.norm ="

OPTIMIZERS = {
    "factored": "optax.chain(optax.adafactor(1e-3, min_dim_size_to_factor=4), optax.ema(0.9))",
    "all other kinds": "optax.MultiSteps(optax.chain(optax.inject_hyperparams(optax.adamw)(1e-3), "
    "optax.scale_by_adam(), optax.trace(0.9)), 2).gradient_transformation()",
}


def config_of(path: Path, optimizer: str = "", model: str = MODEL) -> RunConfig:
    """Returns the configuration of a run whose model is in `path`; the model creates a file when its code runs."""
    own = f"\ndef optimizer():\n    return {optimizer}\n" if optimizer else ""
    path.parent.mkdir(exist_ok=True)
    path.write_text(model + own)
    name, chosen, training, _ = choose_model(f"{path}:Model", ("batch_size=8",))
    return tiny_config(model_name=name, model=chosen, training=training, data=None)


def save(root: Path, config: RunConfig, preset: str = "dp") -> Manifest:
    """Writes a checkpoint of step 0 as `Saver` does."""
    task, folder = Task(config, "cpu"), epath.Path(root / "0")
    placement = place(task, load_preset(preset), jax.devices())
    state = jax.jit(task.initial_state, out_shardings=placement.state_shardings)()
    folder.mkdir(parents=True)
    save_arrays(folder, state).result()
    found = joined(jax.jit(digests)(jax.device_put(jax.tree.leaves(state), jax.devices()[0]))).tolist()
    manifest = Manifest(
        step=0,
        time=0.0,
        preset=preset,
        platform="cpu",
        devices=8,
        loss=None,
        config=config,
        corpus=CorpusInfo("text", 1, 1, "ab" * 32),
        digests=dict(zip(state_names(task), found, strict=True)),
        arrays=array_types(task),
        files=file_digests(folder),
    )
    assert len(manifest.digests) == len(found)
    write_manifest(manifest, folder)
    return manifest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the built-in model for tests to copy."""
    root = tmp_path_factory.mktemp("saved")
    save(root, tiny_config())
    return root


@pytest.fixture
def manifest(saved: Path, tmp_path: Path) -> Manifest:
    """The manifest of a copy of the checkpoint, in `tmp_path`."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return read_manifest(epath.Path(tmp_path / "0"))


def problems(root: Path, config: RunConfig) -> list[str]:
    (found,) = verify(CheckpointDirectory(epath.Path(root)), config).checkpoints
    return found.problems


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(OPTIMIZERS["factored"], marks=pytest.mark.core), OPTIMIZERS["all other kinds"]],
    ids=OPTIMIZERS,
)
def test_every_array_of_a_users_model_is_found(tmp_path: Path, optimizer: str) -> None:
    config = config_of(tmp_path / "model" / "own.py", optimizer)
    save(tmp_path / "saved", config)
    shutil.rmtree(tmp_path / "model")
    assert problems(tmp_path / "saved", config) == []


def test_an_empty_array_is_restored_though_it_is_not_stored(tmp_path: Path) -> None:
    config = config_of(tmp_path / "model" / "own.py", model=MODEL.replace("self.norm =", EMPTY))
    save(tmp_path / "saved", config)
    task = Task(config, "cpu")
    placement = place(task, load_preset("dp"), jax.devices())
    loaded = load_arrays(epath.Path(tmp_path / "saved/0"), placement.abstract_state)
    assert loaded.params["none"].shape == (0, 8)
    assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == placement.state_shardings
    assert problems(tmp_path / "saved", config) == []


def test_arrays_that_cannot_be_saved_are_refused_before_the_first_step(tmp_path: Path) -> None:
    config = config_of(tmp_path / "model" / "own.py", model=MODEL.replace("self.norm =", ODD))
    task, root = Task(config, "cpu"), tmp_path / "checkpoints"
    shared = CorpusInfo("text", 1, 1, "ab" * 32), Cluster(), lambda _: None, lambda: None
    with pytest.raises(UserError, match=r"the model's arrays, of float32, int32, uint32, uint4, cannot be saved: "):
        Saver(CheckpointDirectory(epath.Path(root)), config, task, *shared)
    assert [path.name for path in root.iterdir()] == [lease.FILE_NAME]


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        pytest.param("nano-moe", "ep2-tp2", marks=pytest.mark.core),
        *(pytest.param("nano", preset, marks=pytest.mark.slow) for preset in ("dp-tp2-pp2", "fsdp-tp2")),
    ],
)
def test_every_array_of_a_built_in_model_is_found(tmp_path: Path, model: str, preset: str) -> None:
    name, chosen, training, _ = choose_model(model, TINY)
    config = tiny_config(model_name=name, model=chosen, training=training)
    save(tmp_path, config, preset)
    assert problems(tmp_path, config) == []


@pytest.mark.parametrize(
    ("field", "name", "value", "says"),
    [
        ("digests", "norm.scale", 7, r"norm.scale: digest [0-9a-f]{16}, 0{15}7 when saved"),
        ("digests", "other", 7, "other: missing from the arrays"),
        (
            "digests",
            "mu.norm.scale",
            None,
            rf"arrays\['opt_state'\].*\['mu'\]\['norm'\]\['scale'\]: not in {FILE_NAME}",
        ),
        ("arrays", "norm.scale", "float32 [7]", r"norm.scale: float32 \[32\], float32 \[7\] when saved"),
        ("arrays", "norm.scale", "int8 [32]", r"norm.scale: float32 \[32\], int8 \[32\] when saved"),
    ],
)
def test_arrays_that_differ_from_the_manifest_are_reported(
    tmp_path: Path, manifest: Manifest, field: str, name: str, value: int | str | None, says: str
) -> None:
    """None: the array is not in the manifest."""
    values = {**getattr(manifest, field), name: value}
    changed = {field: {key: each for key, each in values.items() if each is not None}}
    write_manifest(msgspec.structs.replace(manifest, **changed), epath.Path(tmp_path / "0"))
    (problem,) = problems(tmp_path, tiny_config())
    assert re.fullmatch(says, problem)


def test_missing_arrays_are_reported(tmp_path: Path, manifest: Manifest) -> None:
    write_manifest(msgspec.structs.replace(manifest, files={}), epath.Path(tmp_path / "0"))
    shutil.rmtree(tmp_path / "0/arrays")
    (problem,) = problems(tmp_path, tiny_config())
    assert problem.startswith("arrays: ")


def test_a_planted_model_does_not_run(home: Path) -> None:
    """Neither the model in run.json nor one that only the manifest names, which counts as damage."""
    config, planted = (config_of(home / folder / "own.py") for folder in ("model", "planted"))
    directory = run_directory.create(config)
    manifest = save(directory.path / "checkpoints", config)
    (home / "model/it-ran").unlink()

    def verified() -> tuple[int, list[str]]:
        result = answered("verify", "--json", directory.name)
        (found,) = checked("verify", result.stdout)["checkpoints"]
        return result.returncode, found["problems"]

    assert verified() == (0, [])
    folder = epath.Path(directory.path / "checkpoints/0")
    write_manifest(msgspec.structs.replace(manifest, config=planted), folder)
    assert read_manifest(folder).config == planted
    models = f"{home}/planted/own.py:Model with directory {home}/planted", f"{home}/model/own.py:Model with directory"
    code, (problem,) = verified()
    assert code == 1
    assert problem.startswith(f"{FILE_NAME}: the model is {models[0]}, {models[1]}")
    assert not list(home.rglob("it-ran"))
    folder.rename(folder.parent / "0.damaged")
    result = answered("verify", directory.name)
    assert result.returncode == 1
    assert "has no intact checkpoint" in result.stdout
    assert "0.damaged" in result.stdout
