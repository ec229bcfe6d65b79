"""Where a recipe's ranks stand: context groups drawn as placed, edges beside what is promised."""

from itertools import combinations

import pytest
from fakes import candidate, devices

from cptune.domain.placement import Device, place
from cptune.report.ring_picture import Wires, ring_svg
from topology.gpu import Gpu
from topology.nouns import Link, LinkKind, Node, Topology

NVLINK_BYTES_PER_S = 100e9


def node(name, *, gpus=4, joined=2):
    """GPUs of which each run of `joined` is an NVLink island, the islands joined by PCIe."""
    links = tuple(
        Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=4, bytes_per_s=NVLINK_BYTES_PER_S)
        if a // joined == b // joined
        else Link(a=a, b=b, kind=LinkKind.PHB)
        for a, b in combinations(range(gpus), 2)
    )
    return Node(name=name, gpus=tuple(Gpu(index=one) for one in range(gpus)), gpu_links=links)


def wires(layout, *, order=(0, 1, 2, 3), kind="cuda", nodes=None):
    found = devices(4, kind=kind)
    return Wires(
        Topology(source="nvml", nodes=nodes or (node("node0"),)),
        place(layout, [found[one] for one in order]),
    )


def test_a_placement_inside_an_island_is_promised_its_links():
    layout = candidate(cp=2, dp=2).layout
    seen = wires(layout)

    assert seen.promise(0, 1) == ("NV4", NVLINK_BYTES_PER_S)
    svg = ring_svg(layout, seen)
    assert svg.count("crosses islands 0, nodes 0") == 2
    assert "Topology: 1 node, 4 GPUs" in svg  # the matrix stands above the rings


def test_a_placement_over_another_hop_is_drawn_as_it_is_and_not_as_it_should_be():
    layout = candidate(cp=2, dp=2).layout
    seen = wires(layout, order=(0, 2, 1, 3))

    assert seen.promise(0, 1) == ("PHB", None)
    assert ring_svg(layout, seen).count("crosses islands 2, nodes 0") == 2


@pytest.mark.parametrize("nodes", [(Node(name="node0"),), (node("node0"),)])
def test_cpu_processes_are_no_gpus_whatever_the_node_has(nodes):
    layout = candidate(cp=4).layout
    seen = wires(layout, kind="cpu", nodes=nodes)

    assert seen.promise(0, 3) == ("?", None)
    svg = ring_svg(layout, seen)
    assert "ring 0: 4 CPU processes" in svg
    assert "crosses nodes 0" in svg
    assert "GPU" not in svg


@pytest.mark.parametrize("found", [None, Topology(source="nvml", nodes=(node("other"),))])
def test_what_the_topology_does_not_know_is_not_drawn_and_promised_nothing(found):
    layout = candidate(cp=4).layout
    seen = Wires(found, place(layout, devices(4, kind="cuda")))

    assert seen.promise(0, 1) == ("?", None)
    assert ring_svg(layout, seen) == ""


def test_without_cp_there_is_no_ring():
    layout = candidate(dp=4).layout
    assert ring_svg(layout, wires(layout)) == ""


def test_processes_of_two_hosts_are_joined_by_the_network():
    layout = candidate(cp=2).layout
    ends = [Device(node=name, kind="cpu", index=0) for name in ("a", "b")]
    seen = Wires(
        Topology(source="host", nodes=(Node(name="a"), Node(name="b"))), place(layout, ends)
    )

    assert seen.promise(0, 1) == ("NET", None)
    assert "nodes 2" in ring_svg(layout, seen)
