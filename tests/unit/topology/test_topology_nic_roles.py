"""Which NICs are left out, on trees built like /sys, and why."""

import pytest
from sysfs_samples import ACTIVE, NDR, add_bond, add_default_route, add_nic

from topology import GpuNic, LinkKind, Nic
from topology.discover import discover
from topology.nic_roles import NicRole, choose_nics, read_roles
from topology.sysfs import read_nics

ETHERNET = (("100 Gb/sec (4X EDR)", ACTIVE, "Ethernet"),)


def nics_of(*names, layer="InfiniBand", rate=50e9):
    return [Nic(name=name, link_layer=layer, speed_bytes_per_s=rate) for name in names]


def pairs_of(**kinds):
    return [GpuNic(gpu=0, nic=name, kind=kind) for name, kind in kinds.items()]


def names_of(nics):
    return [nic.name for nic in nics]


def test_a_compute_node_keeps_its_rails_and_loses_the_rest(tmp_path):
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    for number in range(2):
        add_nic(sysfs, f"mlx5_{number}", "pci0000:15", f"0000:15:0{number}.0", ports=NDR)
    add_nic(sysfs, "mlx5_2", "pci0000:15", "0000:15:02.0", ports=ETHERNET, interface="eth0")
    add_nic(sysfs, "mlx5_3", "pci0000:15", "0000:15:03.0", ports=ETHERNET, interface="eth1")
    add_nic(sysfs, "mlx5_4", "pci0000:15", "0000:15:04.0", ports=ETHERNET, interface="eth2")
    add_bond(sysfs, "bond0", "eth1")
    add_default_route(proc, "eth0")

    (node,) = discover(sysfs_root=sysfs, proc_root=proc).nodes

    assert names_of(node.nics) == ["mlx5_0", "mlx5_1"]
    assert [note for note in node.notes if "left out" in note] == [
        "NIC mlx5_3: left out: in the bond bond0",
        "NIC mlx5_2: left out: management: the default route leaves by eth0",
        "NIC mlx5_4: left out: storage or management: Ethernet, "
        "while most bandwidth is on InfiniBand",
    ]


def test_the_default_route_over_a_bond_counts_for_its_members(tmp_path):
    add_nic(tmp_path, "mlx5_0", "pci0000:15", "0000:15:00.0", interface="eth0")
    add_bond(tmp_path, "bond0", "eth0")
    add_default_route(tmp_path / "proc", "bond0")

    roles = read_roles(["mlx5_0"], sysfs_root=tmp_path, proc_root=tmp_path / "proc")

    assert roles == {"mlx5_0": NicRole(bond="bond0", default_route="eth0")}


def test_a_bond_is_also_known_by_the_name_of_its_device(tmp_path):
    add_nic(tmp_path, "mlx5_bond_0", "pci0000:15", "0000:15:00.0")

    assert read_roles(["mlx5_bond_0"], sysfs_root=tmp_path, proc_root=tmp_path) == {
        "mlx5_bond_0": NicRole(bond="mlx5_bond_0")
    }


def test_interfaces_that_stand_above_each_other_in_a_circle_end(tmp_path):
    add_nic(tmp_path, "mlx5_0", "pci0000:15", "0000:15:00.0", interface="a")
    for near, far in (("a", "b"), ("b", "a")):
        (tmp_path / "class/net" / near).mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/net" / far).mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/net" / near / "master").symlink_to(tmp_path / "class/net" / far)

    roles = read_roles(["mlx5_0"], sysfs_root=tmp_path, proc_root=tmp_path)

    assert roles == {"mlx5_0": NicRole()}


def test_a_nic_with_no_role_has_none(tmp_path):
    add_nic(tmp_path, "mlx5_0", "pci0000:15", "0000:15:00.0", interface="eth0")

    roles = read_roles(["mlx5_0"], sysfs_root=tmp_path, proc_root=tmp_path)

    assert roles == {"mlx5_0": NicRole()}


def test_bonds_near_the_gpus_are_the_rails_and_stay():
    nics = nics_of("mlx5_bond_0", "mlx5_1", layer="Ethernet")
    pairs = pairs_of(mlx5_bond_0=LinkKind.PIX, mlx5_1=LinkKind.PXB)
    role = NicRole(bond="mlx5_bond_0", default_route="eth0")

    kept, notes = choose_nics(nics, pairs=pairs, roles={"mlx5_bond_0": role})

    assert (names_of(kept), notes) == (["mlx5_bond_0", "mlx5_1"], [])


@pytest.mark.parametrize("role", [NicRole(bond="bond0"), NicRole(default_route="eth0")])
def test_a_rule_that_would_leave_no_nic_is_not_applied(role):
    nics = nics_of("a", "b")

    kept, notes = choose_nics(nics, pairs=[], roles={"a": role, "b": role})

    assert (kept, notes) == (nics, [])


def test_a_nic_far_from_every_gpu_is_left_out_where_others_are_near():
    nics = nics_of("near", "far", "unclear")
    pairs = pairs_of(near=LinkKind.PXB, far=LinkKind.NODE, unclear=None)

    kept, notes = choose_nics(nics, pairs=pairs, roles={})

    assert names_of(kept) == ["near", "unclear"]
    assert notes == [
        "NIC far: left out: storage or management: far from every GPU, others are near"
    ]


def test_where_every_nic_is_far_all_stay():
    nics = nics_of("a", "b")

    kept, notes = choose_nics(nics, pairs=pairs_of(a=LinkKind.PHB, b=LinkKind.SYS), roles={})

    assert (kept, notes) == (nics, [])


def test_the_link_layer_with_the_most_bandwidth_is_the_one():
    nics = [*nics_of("ib0", rate=12.5e9), *nics_of("roce0", "roce1", layer="Ethernet")]

    kept, notes = choose_nics(nics, pairs=[], roles={})

    assert names_of(kept) == ["roce0", "roce1"]
    assert notes == [
        "NIC ib0: left out: storage or management: InfiniBand, while most bandwidth is on Ethernet"
    ]


def test_a_layer_that_is_not_told_is_no_reason():
    nics = [*nics_of("a"), *nics_of("b", layer=None)]

    assert choose_nics(nics, pairs=[], roles={}) == (nics, [])


def test_ties_are_kept(tmp_path):
    nics = nics_of(*"abcd")
    pairs = pairs_of(a=LinkKind.PIX, b=LinkKind.PIX, c=LinkKind.PIX, d=LinkKind.PIX)

    assert choose_nics(nics, pairs=pairs, roles={}) == (nics, [])


def test_efa_devices_of_one_layer_all_stay(tmp_path):
    for number in range(4):
        ports = [("100 Gb/sec", ACTIVE, "Unspecified")]
        add_nic(tmp_path, f"rdmap{number}", "pci0000:15", f"0000:15:0{number}.0", ports=ports)

    nics, _ = read_nics(tmp_path)
    kept, notes = choose_nics(nics, pairs=[], roles={})

    assert (kept, notes) == (nics, [])
    assert {nic.link_layer for nic in nics} == {"Unspecified"}
