"""TPU slices and the links of mesh axes, against figures by hand. Needs no TPU compiler."""

import pytest
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.spec.topology import chips, load_topology, wiring

V5P = chips()["v5p"].link_rate
V5E = chips()["v5e"].link_rate


def test_an_axis_that_fills_a_dim_of_four_is_a_ring() -> None:
    slice_, mesh = load_topology("v5p:4x4x4"), {"data": 4, "fsdp": 4, "model": 4}
    found = [wiring(slice_, mesh, [axis]) for axis in mesh]
    assert [(wired.dims, wired.rings, wired.strides, wired.rate) for wired in found] == [
        (["x"], [True], [1], 2 * V5P),
        (["y"], [True], [1], 2 * V5P),
        (["z"], [True], [1], 2 * V5P),
    ]


def test_an_axis_over_part_of_a_dim_is_a_line_whose_links_other_groups_share() -> None:
    slice_, mesh = load_topology("v5p:4x4x4"), {"data": 8, "model": 8}
    inner, outer = wiring(slice_, mesh, ["model"]), wiring(slice_, mesh, ["data"])
    assert (inner.dims, inner.rings, inner.strides) == (["y", "z"], [False, True], [1, 1])
    assert inner.rate == 3 * V5P
    assert (outer.dims, outer.rings, outer.strides) == (["x", "y"], [True, False], [1, 2])
    assert outer.rate == 2.5 * V5P


def test_several_axes_together_use_each_link_once() -> None:
    slice_, mesh = load_topology("v5p:4x4x4"), {"data": 8, "model": 8}
    both = wiring(slice_, mesh, ["data", "model"])
    assert (both.size, both.dims, both.rate) == (64, ["x", "y", "z"], 6 * V5P)


def test_only_a_full_side_of_a_v5e_pod_is_a_ring() -> None:
    mesh = {"data": 4, "model": 4}
    assert wiring(load_topology("v5e:4x4"), mesh, ["data"]).rate == V5E
    mesh = {"data": 16, "model": 16}
    assert wiring(load_topology("v5e:16x16"), mesh, ["data"]).rate == 2 * V5E


def test_an_axis_that_turns_a_corner_has_one_link() -> None:
    wired = wiring(load_topology("v5e:4x4"), {"data": 8, "model": 2}, ["data"])
    assert wired.rate == V5E / 2 + V5E
    odd = wiring(load_topology("v5e:2x6"), {"data": 3, "model": 4}, ["model"])
    assert odd.rate == V5E


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("v9:4x4", "no such slice"),
        ("v5p", "no such slice"),
        ("v5p:4x4", "2 dims, but a v5p slice has 3"),
        ("v5e:0x4", "0 chips"),
        ("v5p:9999x9999x9", "a slice has 1 to 16,384"),
    ],
)
def test_invalid_names_are_rejected(name: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        load_topology(name)
