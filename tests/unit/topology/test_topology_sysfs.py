"""NICs, paths and distances, on trees of directories and symlinks built like /sys."""

import pytest
from sysfs_samples import ACTIVE, add_device, add_nic

from topology import LinkKind
from topology.sysfs import (
    distance,
    is_switch,
    nic_pci_path,
    normal_bus_id,
    read_cpu_affinity,
    read_nics,
    read_numa_node,
    read_pci_path,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("00000001:00:00.0\n", "0001:00:00.0"),
        ("", None),
        ("fffffff:ffff:ff", None),
        ("1B:00.0", None),
        ("00000000:1B:00.9", None),
    ],
)
def test_a_bus_id_is_written_as_sysfs_does(text, normal):
    assert normal_bus_id(text) == normal


def test_the_pci_path_runs_from_the_host_bridge_to_the_device(tmp_path):
    add_device(tmp_path, "pci0000:15", "0000:15:01.0", "0000:16:00.0")

    path = read_pci_path("0000:16:00.0", root=tmp_path)

    assert path == ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


def test_a_path_behind_a_virtual_bus_starts_at_the_host_bridge(tmp_path):
    add_device(tmp_path, "LNXSYSTM:00", "VMBUS:00", "guid", "pci0001:00", "0001:00:00.0")

    assert read_pci_path("0001:00:00.0", root=tmp_path) == ("pci0001:00", "0001:00:00.0")


@pytest.mark.parametrize("bus_id", [None, "0000:99:00.0"])
def test_a_device_that_sysfs_does_not_show_is_unknown(tmp_path, bus_id):
    assert read_pci_path(bus_id, root=tmp_path) is None
    assert read_numa_node(bus_id, root=tmp_path) is None
    assert read_cpu_affinity(bus_id, root=tmp_path) is None


def test_a_device_off_pci_has_no_path(tmp_path):
    add_device(tmp_path, "platform", "0000:01:00.0")

    assert read_pci_path("0000:01:00.0", root=tmp_path) is None


@pytest.mark.parametrize(("text", "numa_node"), [("0", 0), ("3", 3), ("-1", None), ("", None)])
def test_numa_node_minus_one_is_unknown(tmp_path, text, numa_node):
    add_device(tmp_path, "pci0000:00", "0000:00:01.0", numa_node=text)

    assert read_numa_node("0000:00:01.0", root=tmp_path) == numa_node


def test_cpu_affinity_is_the_local_cpu_list(tmp_path):
    folder = add_device(tmp_path, "pci0000:00", "0000:00:01.0")
    (folder / "local_cpulist").write_text("0-47,96-143\n")

    assert read_cpu_affinity("0000:00:01.0", root=tmp_path) == "0-47,96-143"


@pytest.mark.parametrize(("shown", "answer"), [("0x068000", True), ("0x030200", False)])
def test_a_switch_is_told_by_its_pci_class(tmp_path, shown, answer):
    folder = add_device(tmp_path, "pci0000:00", "0000:00:01.0")
    (folder / "class").write_text(f"{shown}\n")

    assert is_switch("0000:00:01.0", root=tmp_path) is answer
    assert is_switch("0000:00:02.0", root=tmp_path) is False


ROOT_A, ROOT_B = "pci0000:15", "pci0000:5d"
GPU = (ROOT_A, "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        # another port of the same switch
        ((*GPU[:3], "0000:17:01.0", "0000:19:00.0"), LinkKind.PIX),
        # another function below the same port
        ((*GPU[:4], "0000:18:00.1"), LinkKind.PIX),
        # below a second switch that hangs off the first
        (
            (*GPU[:3], "0000:17:02.0", "0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0"),
            LinkKind.PXB,
        ),
        # below one more bridge
        ((*GPU[:3], "0000:17:03.0", "0000:1d:00.0", "0000:1e:00.0"), LinkKind.PXB),
        # another root port of the same host bridge
        ((ROOT_A, "0000:15:02.0", "0000:20:00.0"), LinkKind.PHB),
    ],
)
def test_distance_below_one_host_bridge_needs_no_numa_node(other, kind):
    assert distance(GPU, other, numa_a=None, numa_b=None) is kind
    assert distance(other, GPU, numa_a=0, numa_b=1) is kind


@pytest.mark.parametrize(
    ("numa_a", "numa_b", "kind"),
    [(0, 0, LinkKind.NODE), (0, 1, LinkKind.SYS), (None, 0, None), (0, None, None)],
)
def test_distance_between_host_bridges_is_by_numa_node(numa_a, numa_b, kind):
    other = (ROOT_B, "0000:5d:01.0", "0000:5e:00.0")

    assert distance(GPU, other, numa_a=numa_a, numa_b=numa_b) is kind


def test_distance_without_a_path_is_unknown():
    assert distance(None, GPU, numa_a=0, numa_b=0) is None
    assert distance(GPU, None, numa_a=0, numa_b=0) is None


def test_a_nic_has_name_address_speed_and_numa_node(tmp_path):
    add_nic(tmp_path, "mlx5_0", ROOT_A, "0000:15:01.0", "0000:16:00.0", numa_node=1)

    (nic,), notes = read_nics(tmp_path)

    assert (nic.name, nic.pci_bus_id, nic.numa_node) == ("mlx5_0", "0000:16:00.0", 1)
    assert nic.speed_bytes_per_s == 50e9
    assert notes == []
    assert nic_pci_path("mlx5_0", root=tmp_path) == (ROOT_A, "0000:15:01.0", "0000:16:00.0")


def test_nics_come_by_name(tmp_path):
    for number in (2, 0, 1):
        add_nic(tmp_path, f"mlx5_{number}", ROOT_A, f"0000:15:0{number}.0")

    assert [nic.name for nic in read_nics(tmp_path)[0]] == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_speed_is_that_of_the_fastest_active_port(tmp_path):
    ports = [("100 Gb/sec", ACTIVE), ("200 Gb/sec", ACTIVE), ("400 Gb/sec", "1: DOWN")]
    add_nic(tmp_path, "mlx5_0", ROOT_A, "0000:15:00.0", ports=ports)

    assert read_nics(tmp_path)[0][0].speed_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("ports", "why"),
    [
        ([("10 Gb/sec (4X SDR)", "1: DOWN")], "no active port (port 1 is 1: DOWN)"),
        ([("", ACTIVE)], "no rate is told"),
        ([("0 Gb/sec", ACTIVE)], "no rate is told"),
        ([("Unknown", ACTIVE)], "no rate is told"),
        ([], "it shows no port"),
    ],
)
def test_a_speed_that_nobody_tells_is_unknown_with_the_reason(tmp_path, ports, why):
    add_nic(tmp_path, "mlx5_0", ROOT_A, "0000:15:00.0", ports=ports)

    (nic,), notes = read_nics(tmp_path)

    assert nic.speed_bytes_per_s is None
    assert notes == [f"NIC mlx5_0: speed unknown: {why}"]


def test_a_software_nic_has_no_pci_device(tmp_path):
    (tmp_path / "class/infiniband/rxe0").mkdir(parents=True)

    (nic,), notes = read_nics(tmp_path)

    assert nic.pci_bus_id is None
    assert "NIC rxe0: no PCI device behind it" in notes


def test_no_rdma_at_all_is_said_with_the_place_looked_at(tmp_path):
    nics, notes = read_nics(tmp_path)

    assert nics == []
    assert notes == [f"no RDMA network device: {tmp_path}/class/infiniband does not exist"]


@pytest.mark.parametrize(
    ("ports", "layer", "state"),
    [
        (
            [("200 Gb/sec", ACTIVE, "Ethernet"), ("400 Gb/sec", ACTIVE, "InfiniBand")],
            "InfiniBand",
            "ACTIVE",
        ),
        ([("400 Gb/sec", "1: DOWN", "InfiniBand")], "InfiniBand", "DOWN"),
        ([("100 Gb/sec", ACTIVE, "Unknown")], "Unknown", "ACTIVE"),
        ([("100 Gb/sec", "", "")], None, None),
        ([], None, None),
    ],
)
def test_link_layer_and_state_are_those_of_the_fastest_port(tmp_path, ports, layer, state):
    add_nic(tmp_path, "mlx5_0", ROOT_A, "0000:15:00.0", ports=ports)

    (nic,), _ = read_nics(tmp_path)

    assert (nic.link_layer, nic.state) == (layer, state)
