"""Checkpoints that Orbax wrote, in all its forms, are described from their metadata; what is damaged is named."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint.arrays import save_arrays
from shardtui.engine.checkpoint.orbax_checkpoint import describe_checkpoints
from shardtui.engine.checkpoint.orbax_placement import place_checkpoint
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.checkpoints import StoredCheckpoint

from ..command import answered
from ..conftest import tiny_config
from ..schemas import checked

AXES = {"data": 4, "model": 2}
Write = Callable[[Path, Any], object]


def tree() -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    kernel = jax.device_put(jnp.zeros((64, 32)), NamedSharding(mesh, P("data", "model")))
    table = jax.device_put(jnp.ones((64, 32), jnp.bfloat16), NamedSharding(mesh, P(("data", "model"))))
    params = {"layers": [{"kernel": kernel}], "table.x": table}
    state = optax.adam(1e-3).init(params)
    return {
        "params": params,
        "opt_state": state,
        "step": np.int32(3),
        "lr": 0.5,
        "none": None,
        "host": np.zeros((2, 3)),
    }


SPLIT = {"kernel": ("float32", 8192, [["data"], ["model"]]), "x": ("bfloat16", 4096, [["data", "model"], []])}
STORED = {
    f"{prefix}.{name}": (kind, *SPLIT[name.rpartition(".")[2]])
    for prefix, kind in (("params", "parameter"), ("opt_state.0.mu", "moment"), ("opt_state.0.nu", "moment"))
    for name in ("layers.0.kernel", "table.x")
}


def managed(**items: Any) -> Write:
    def write(directory: Path, _: Any) -> None:
        with ocp.CheckpointManager(directory) as manager:
            for step in (9, 20):
                manager.save(step, args=ocp.args.Composite(**items) if "default" not in items else items["default"])

    return write


def pytree(**options: Any) -> Write:
    return lambda directory, state: ocp.PyTreeCheckpointer(**options).save(directory, state)


def standard(directory: Path, state: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory, state)


def aggregated(directory: Path, state: Any) -> None:
    """As versions wrote that had no `_METADATA` yet."""
    pytree(use_ocdbt=False)(directory, state)
    (directory / "_METADATA").unlink()
    with_aggregate(directory, state)


def with_structure(directory: Path, state: Any) -> None:
    """As versions wrote that had both."""
    pytree()(directory, state)
    with_aggregate(directory, state)


def with_aggregate(directory: Path, state: Any) -> None:
    """Adds the file with all but the split arrays, for which it has placeholders."""
    values = jax.tree_util.tree_map_with_path(lambda path, leaf: _aggregated_leaf(path, leaf), state)
    handler = ocp.aggregate_handlers.MsgpackHandler()
    asyncio.run(handler.serialize(epath.Path(directory) / "checkpoint", values)).result()


def _aggregated_leaf(path: Any, leaf: Any) -> Any:
    if getattr(leaf, "ndim", 0) != 2 or isinstance(leaf, np.ndarray):
        return leaf
    keys = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))) for key in path)
    return f"PLACEHOLDER://{'.'.join(map(str, keys))}"


def test_every_form_has_the_same_arrays(tmp_path: Path) -> None:
    state = tree()
    save = ocp.args
    for at, (write, items) in enumerate(
        [
            (standard, [""]),
            (pytree(), [""]),
            (pytree(use_zarr3=True), [""]),
            (pytree(use_ocdbt=False), [""]),
            (pytree(use_ocdbt=False, use_zarr3=True), [""]),
            (aggregated, [""]),
            (with_structure, [""]),
            (managed(default=save.StandardSave(state)), ["default"]),
            (managed(items=save.PyTreeSave(state), meta=save.JsonSave({"a": 1})), ["items"]),
        ]
    ):
        directory = tmp_path / str(at) / "saved"
        write(directory, state)
        found = described(directory)
        assert found.problems == []
        assert found.items == items
        assert found.newest_of == (0 if items == [""] else 2)
        assert Path(found.directory).name == ("saved" if items == [""] else "20")
        assert [mesh.axes for mesh in found.meshes] == [AXES]
        on_mesh = {each.name: (each.kind, each.dtype, each.bytes, each.spec) for each in found.arrays if each.mesh == 0}
        assert on_mesh == STORED
        others = {each.name: each.shape for each in found.arrays if each.mesh is None}
        assert others == {"opt_state.0.count": [], "step": [], "lr": [], "host": [2, 3]}


def described(directory: Path) -> StoredCheckpoint:
    (found,) = describe_checkpoints(str(directory))
    return found


def test_several_items_and_a_single_array(tmp_path: Path) -> None:
    params = tree()["params"]
    save = ocp.args
    write = managed(state=save.StandardSave(params), ema=save.ArraySave(params["table.x"]))
    write(tmp_path / "a", None)
    names = {array.name: array.spec for array in described(tmp_path / "a").arrays}
    table = [["data", "model"], []]
    assert names == {"ema.checkpoint": table, "state.layers.0.kernel": [["data"], ["model"]], "state.table.x": table}


def first(directory: Path, glob: str) -> Path:
    """The largest file that matches."""
    return max(directory.glob(glob), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("is_ocdbt", "damage", "says", "arrays"),
    [
        (True, lambda d: (d / "_METADATA").unlink(), "incomplete or damaged: no _METADATA", 0),
        (True, lambda d: (d / "_METADATA").write_text("{"), "_METADATA: cannot be read: ", 0),
        (True, lambda d: (d / "manifest.ocdbt").unlink(), "incomplete or damaged: no manifest.ocdbt", 0),
        (True, lambda d: (d / "manifest.ocdbt").write_bytes(b"x"), "cannot be read: ", 0),
        (True, lambda d: first(d, "d/*").unlink(), "cannot be read|missing", 0),
        (True, lambda d: first(d, "ocdbt*/d/*").unlink(), r"damaged: missing, values go to byte \d", 1),
        (True, lambda d: first(d, "ocdbt*/d/*").write_bytes(b"x"), r"damaged: 1 B?.*, values go to byte \d", 1),
        (True, lambda d: (d / "_sharding").write_text('{"eA==":"{\\"shape\\": [9]}"}'), "_sharding: x: cannot be", 1),
        (False, lambda d: (d / "x/0.1").unlink(), "x: damaged: 1 of 8 pieces of its values are missing", 1),
        (False, lambda d: (d / "x/.zarray").unlink(), "x/.zarray: cannot be read: No such file", 0),
        (False, lambda d: (d / "x/.zarray").write_text('{"shape":[1],"dtype":"|O","chunks":[1]}'), "no array is", 0),
        (False, lambda d: (d / "_CHECKPOINT_METADATA").write_text('{"init_timestamp_nsecs":1}'), "incomplete", 1),
        (True, lambda d: d.rename(f"{d}.orbax-checkpoint-tmp-7"), "incomplete: it was not written to its end", 1),
    ],
)
def test_damage_is_named(
    is_ocdbt: bool, damage: Callable[[Path], object], says: str, arrays: int, tmp_path: Path
) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    x = jax.random.normal(jax.random.key(0), (512, 256))
    pytree(use_ocdbt=is_ocdbt)(tmp_path / "saved", {"x": jax.device_put(x, NamedSharding(mesh, P("data", "model")))})
    damage(tmp_path / "saved")
    (directory,) = tmp_path.iterdir()
    found = described(directory)
    assert len(found.arrays) == arrays
    assert len(found.problems) == 1
    assert re.search(says, found.problems[0])


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    for directory, says in (
        (tmp_path, "no Orbax checkpoint: .*it has notes.txt"),
        (tmp_path / "absent", "no such directory"),
        (tmp_path / "notes.txt", "cannot be read"),
    ):
        with pytest.raises(UserError, match=says):
            described(directory)


def test_an_own_checkpoint_under_another_preset(tmp_path: Path) -> None:
    config = tiny_config()
    task = Task(config, "cpu")
    placement = place(task, load_preset("dp-tp2"), jax.devices())
    state = jax.jit(task.initial_state, out_shardings=placement.state_shardings)()
    save_arrays(epath.Path(tmp_path / "20"), state).result()
    found = place_checkpoint(msgspec.structs.replace(config, preset="fsdp"), str(tmp_path))
    assert found.placed
    assert found.placed.unnamed == []
    assert found.placed.mesh.axes == {"fsdp": 8}
    other = place(task, load_preset("fsdp"), jax.devices())
    arrays = other.describe_all((other.state_shardings, other.batch_shardings))
    specs = [each.spec for each in arrays if each.kind != "batch"]
    assert sorted(each.spec for each in found.placed.arrays) == sorted(specs)
    assert any("fsdp" in dim for spec in specs for dim in spec)


def test_the_command(tmp_path: Path) -> None:
    state = tree()
    standard(tmp_path / "one", state)
    state["params"]["table.x"] = jnp.zeros((8, 8))
    del state["host"]
    standard(tmp_path / "other", state)
    one = answered("inspect", "--checkpoint", str(tmp_path / "one"))
    assert one.returncode == 0, one.stderr
    assert "saved on data 4 × model 2" in one.stdout
    assert "params.layers.0.kernel[64@data, 32@model]" in one.stdout
    preset = answered("inspect", "--checkpoint", str(tmp_path / "one"), "--preset", "tp", "--json")
    placed = checked("inspect-checkpoint", preset.stdout)["placed"]
    assert placed["unnamed"] == ["host", *sorted(name for name in STORED if name)]
    changed = answered("inspect", "--checkpoint", str(tmp_path / "one"), "--diff", str(tmp_path / "other"), "--json")
    differs = {each["name"]: each["differs"] for each in checked("inspect-checkpoint-diff", changed.stdout)["arrays"]}
    assert differs == {"host": ["gone"], "params.table.x": ["shape", "dtype", "spec", "mesh"]}
    (tmp_path / "one" / "manifest.ocdbt").unlink()
    damaged = answered("inspect", "--checkpoint", str(tmp_path / "one"))
    assert (damaged.returncode, "incomplete or damaged: no manifest.ocdbt" in damaged.stdout) == (1, True)
    both = answered("inspect", "--checkpoint", "x", "--preset", "tp", "--diff", "y")
    assert (both.returncode, "either --preset or --diff" in both.stderr) == (2, True)
