"""TPU slices and the links of mesh axes, inside slices and between them, against figures by hand. Needs no compiler."""

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.topology import chips, crossing, load_topology, spans, wiring, within

V5P = chips()["v5p"].link_rate
V5E = chips()["v5e"].link_rate


def test_an_axis_that_fills_a_dim_is_a_ring_and_one_over_a_part_a_line_whose_links_others_share() -> None:
    slice_, mesh = load_topology("v5p:4x4x4"), {"data": 4, "fsdp": 4, "model": 4}
    for axis, dim in zip(mesh, "xyz", strict=True):
        wired = wiring(slice_, mesh, [axis])
        assert (wired.dims, wired.rings, wired.strides, wired.rate) == ([dim], [True], [1], 2 * V5P)
    mesh = {"data": 8, "model": 8}
    inner, outer = wiring(slice_, mesh, ["model"]), wiring(slice_, mesh, ["data"])
    assert (inner.dims, inner.rings, inner.strides) == (["y", "z"], [False, True], [1, 1])
    assert inner.rate == 3 * V5P
    assert (outer.dims, outer.rings, outer.strides) == (["x", "y"], [True, False], [1, 2])
    assert outer.rate == 2.5 * V5P
    both = wiring(slice_, mesh, ["data", "model"])
    assert (both.size, both.dims, both.rate) == (64, ["x", "y", "z"], 6 * V5P), "each link once"


def test_only_a_full_side_of_a_v5e_pod_is_a_ring_and_an_axis_that_turns_a_corner_has_one_link() -> None:
    assert wiring(load_topology("v5e:4x4"), {"data": 4, "model": 4}, ["data"]).rate == V5E
    assert wiring(load_topology("v5e:16x16"), {"data": 16, "model": 16}, ["data"]).rate == 2 * V5E
    assert wiring(load_topology("v5e:4x4"), {"data": 8, "model": 2}, ["data"]).rate == V5E / 2 + V5E
    assert wiring(load_topology("v5e:2x6"), {"data": 3, "model": 4}, ["model"]).rate == V5E


def test_invalid_names_are_rejected() -> None:
    for name, why in (
        ("v9:4x4", "no such devices"),
        ("v5p", "no such devices"),
        ("v5p:4x4", "2 dims, but a v5p slice has 3"),
        ("v5e:0x4", "0 chips"),
        ("v5p:9999x9999x9", "a slice has 1 to 16,384"),
        ("0*v5e:4x4", "0 chips: a slice has 1"),
        ("-2*v5e:4x4", "no such devices"),
        ("2*2*v5e:4x4", "no such devices"),
        ("65*v5e:16x16", "16,640 chips: slices have 1 to 16,384"),
        ("2*v4:4x4x4", "no bandwidth between v4 slices is published: plan v5e, v5p"),
        ("gb200:20x4", "NVLink connects the GPUs of 18 hosts: give at most 18, or a multiple"),
        ("h100:8", "give the hosts and the GPUs of each, such as 4x8"),
        ("2*h100:4x8", "GPUs have no slices: leave out --slices, and give more hosts"),
    ):
        with pytest.raises(UserError, match=why):
            pytest.fail(f"{name} was taken: {load_topology(name)}")


def test_the_first_axes_cross_slices_if_slice_boundaries_divide_the_mesh() -> None:
    assert spans({"data": 4, "model": 2}, 1) == {"data": 1, "model": 1}
    assert spans({"data": 4, "fsdp": 8, "model": 2}, 2) == {"data": 2, "fsdp": 1, "model": 1}
    assert spans({"data": 2, "fsdp": 8, "model": 2}, 4) == {"data": 2, "fsdp": 2, "model": 1}
    assert crossing({"data": 1, "model": 8}, 4) == ["model"]
    assert within({"data": 4, "fsdp": 8}, 2) == {"data": 2, "fsdp": 8}
    message = r"mesh data 3 × model 8 cannot be laid over 2 slices: data \(3\) and 2 slices do not divide each other"
    with pytest.raises(UserError, match=message):
        spans({"data": 3, "model": 8}, 2)


def test_an_axis_over_slices_uses_both_networks_and_the_devices_of_a_chip_share_its_links() -> None:
    slices = load_topology("2*v5p:4x4x4")
    assert (slices.name, slices.slices, slices.devices, slices.title) == ("v5p:4x4x4", 2, 128, "2 × v5p:4x4x4")
    replica, fsdp = (wiring(slices, {"replica": 2, "fsdp": 64}, [axis]) for axis in ("replica", "fsdp"))
    assert (replica.size, replica.slices, replica.rate, replica.dcn_rate) == (2, 2, 0, 50e9 / 8)
    assert (fsdp.size, fsdp.slices, fsdp.rate, fsdp.dcn_rate) == (64, 1, 6 * V5P, None)
    alone = wiring(slices, {"fsdp": 128}, ["fsdp"])
    assert (alone.size, alone.slices, alone.rate, alone.dcn_rate) == (128, 2, 6 * V5P, 50e9 / 8)
    slice_, mesh = load_topology("tpu7x:4x4x4"), {"data": 4, "fsdp": 16, "model": 2}
    chip, link = slice_.chip, slice_.chip.link_rate
    devices = [load_topology(name).devices for name in ("tpu7x:4x4x4", "tpu7x:2x2x1", "2*tpu7x:2x2x1")]
    assert devices == [128, 8, 16]
    assert (chip.flops * 2, chip.memory_rate * 2) == (2307e12, 7380e9)
    model = wiring(slice_, mesh, ["model"])
    assert (model.size, model.dims, model.rate) == (2, [], chip.core_rate)
    data = wiring(slice_, mesh, ["data"])
    assert (data.size, data.dims, data.rings, data.rate) == (4, ["x"], [True], 2 * link / 2)
    both = wiring(slice_, mesh, ["fsdp", "model"])
    assert (both.size, both.dims, both.rate) == (32, ["y", "z"], 4 * link)


def test_gpus_of_a_host_are_connected_by_nvlink_and_hosts_by_a_network() -> None:
    topology, mesh = load_topology("h100:4x8"), {"data": 4, "model": 8}
    assert (topology.devices, topology.platform, topology.slices, topology.domains) == (32, "gpu", 1, 4)
    data, model, both = (wiring(topology, mesh, axes) for axes in (["data"], ["model"], ["data", "model"]))
    chip = topology.chip
    assert (data.rate, data.slices, data.dcn_rate) == (0, 4, chip.dcn_rate)
    assert (model.rate, model.slices, model.dcn_rate) == (chip.link_rate, 1, None)
    assert (both.size, both.rate, both.slices, both.dcn_rate) == (32, chip.link_rate, 4, chip.dcn_rate)
    assert [load_topology(name).domains for name in ("gb200:1x4", "gb200:18x4", "gb200:36x4")] == [1, 1, 2]
