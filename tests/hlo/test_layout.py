"""Shards agree with jax's `devices_indices_map` at any rank, and drawn shardings with jax's own at ranks 1 and 2."""

import contextlib
import io
import itertools
import math

import jax
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.hlo.layout import bytes_per_device, replicas, shards
from shardtui.engine.parallel.mesh import build_mesh, describe_mesh
from shardtui.engine.wire.descriptions import ArrayInfo, MeshInfo
from shardtui.tui.widgets.sharding_picture import Subject, draw_sharding, initial_subject, label, next_slice

Spec = list[list[str]]
Case = tuple[list[int], Spec, NamedSharding, MeshInfo]
MESHES = [
    dict(zip("abc", sizes, strict=False)) for n in (1, 2, 3) for sizes in itertools.product((1, 2, 4, 8), repeat=n)
]
MESHES = [mesh for mesh in MESHES if math.prod(mesh.values()) == 8]


@st.composite
def shardings(draw: st.DrawFn, ranks: st.SearchStrategy[int]) -> Case:
    """Draws a shape, a spec that divides it, and a mesh with any order of devices."""
    axes = draw(st.sampled_from(MESHES))
    order = draw(st.permutations(jax.devices()))
    rank = draw(ranks)
    spec: Spec = [[] for _ in range(rank)]
    for axis in draw(st.permutations(sorted(axes))) if rank else []:
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            spec[dim].append(axis)
    shape = [math.prod(axes[axis] for axis in dim) * draw(st.integers(1, 5)) for dim in spec]
    mesh = build_mesh(axes, order)
    sharding = NamedSharding(mesh, PartitionSpec(*(tuple(dim) or None for dim in spec)))
    return shape, spec, sharding, describe_mesh(mesh)


def array_info(shape: list[int], spec: Spec) -> ArrayInfo:
    return ArrayInfo(
        name="x",
        kind="parameter",
        shape=shape,
        dtype="float32",
        bytes=4 * math.prod(shape),
        logical_axes=[None] * len(shape),
        spec=spec,
        compiled_spec=spec,
        reasons=[""] * len(shape),
    )


@given(shardings(st.integers(0, 4)))
def test_shards_equal_those_of_jax(case: Case) -> None:
    shape, spec, sharding, mesh = case
    expected: dict[tuple[tuple[int, int], ...], set[int]] = {}
    for device, box in sharding.devices_indices_map(tuple(shape)).items():
        edges = tuple(part.indices(size)[:2] for part, size in zip(box, shape, strict=True))
        expected.setdefault(edges, set()).add(device.id)
    found = {tuple(zip(s.start, s.stop, strict=True)): set(s.devices) for s in shards(shape, spec, mesh)}
    assert found == expected
    assert {len(devices) for devices in expected.values()} == {replicas(spec, mesh)}
    assert bytes_per_device(array_info(shape, spec), mesh) == 4 * math.prod(sharding.shard_shape(tuple(shape)))


def pictured(shape: list[int], spec: Spec, mesh: MeshInfo, platform: str = "cpu") -> Subject:
    return initial_subject(array_info(shape, spec), mesh, platform)


def cells(picture: str) -> list[list[str]]:
    """Returns the text in each box of a drawn grid."""
    bands: list[list[str]] = []
    for line in picture.splitlines():
        if line[:1] in "┌├":
            bands.append([])
        elif line[:1] == "│":
            texts = [text.strip() for text in line.strip().strip("│").split("│")]
            bands[-1] = [old or new for old, new in zip(bands[-1] or [""] * len(texts), texts, strict=True)]
    return [band for band in bands if band]


@given(shardings(st.integers(1, 2)))
def test_every_cell_of_a_drawn_sharding_equals_that_of_jax(case: Case) -> None:
    shape, spec, sharding, mesh = case
    drawn = io.StringIO()
    with contextlib.redirect_stdout(drawn):
        jax.debug.visualize_sharding(shape, sharding, use_color=False, max_width=800)
    ours = draw_sharding(pictured(shape, spec, mesh), width=400, height=100)
    theirs = cells(drawn.getvalue())
    assume(any(text for row in theirs for text in row))  # jax leaves out the labels of very flat arrays
    assert cells("\n".join(line.plain for line in ours)) == theirs


@given(shardings(st.integers(3, 4)), st.integers(20, 140), st.integers(6, 60))
def test_arrays_of_higher_rank_are_drawn_within_the_pane(case: Case, width: int, height: int) -> None:
    """Stepping through all slices draws every shard exactly once."""
    shape, spec, _, mesh = case
    shown = pictured(shape, spec, mesh)
    assert 0 < len(draw_sharding(shown, width, height)) <= height
    drawn: list[str] = []
    start = shown.cursor
    while True:
        lines = draw_sharding(shown, 400, 400)
        drawn += [cell for row in cells("\n".join(line.plain for line in lines)) for cell in row]
        shown = next_slice(shown, 1)
        if shown.cursor == start:
            break
    expected = [label("cpu", shard.devices, 26, mesh) for shard in shards(shape, spec, mesh)]
    assert sorted(drawn) == sorted(expected)


def test_a_scalar_is_one_cell_and_labels_are_shortened_to_the_width() -> None:
    mesh = MeshInfo({"data": 8}, list(range(8)))
    lines = draw_sharding(pictured([], [], mesh, "tpu"), 60, 10)
    assert cells("\n".join(line.plain for line in lines)) == [["TPU 0,1,2,3,4,5,6,7"]]
    mesh = MeshInfo({"data": 32, "model": 2}, list(range(64)))
    assert label("cpu", [2, 0], 26, mesh) == "CPU 0,2"
    assert label("cpu", [2, 0], 5, mesh) == "0,2"
    assert label("cpu", list(range(1, 64, 2)), 12, mesh) == "model 1 (32)"
    assert label("cpu", list(range(64)), 10, mesh) == "all (64)"
    assert label("cpu", list(range(64)), 3, mesh) == "×64"
