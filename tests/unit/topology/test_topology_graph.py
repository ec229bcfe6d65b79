"""The edges of a cluster: what joins two devices, and which of two edges is better."""

from itertools import combinations, pairwise

import pytest
from ring_samples import DGX_1V, NIC_RATE, NVLINK_RATE, cluster, node_of, node_of_table, switch

from topology import Edge, Gpu, Node, TierKind
from topology.graph import Device, DeviceEdge, Graph, worth


def graph_of(*nodes, **network):
    return Graph(cluster(*nodes, **network))


def dev(gpu, node="node0"):
    return Device(node=node, gpu=gpu)


def test_an_edge_inside_a_node_says_what_the_inventory_says():
    graph = graph_of(node_of("NV18", bytes_per_s=NVLINK_RATE))

    edge = graph.edge(dev(5), dev(2))

    assert (edge.kind, edge.lanes, edge.bytes_per_s) == ("NVLINK", 18, NVLINK_RATE)
    assert (edge.a, edge.b, edge.label, edge.planned) == (dev(5), dev(2), "NV18", False)


def test_kinds_without_rates_are_ordered_as_the_tool_that_prints_them_does():
    cells = ["NV18", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]
    but = {(0, place): cell for place, cell in enumerate(cells, 1)}
    graph = graph_of(node_of("SYS", gpus=len(cells) + 1, but=but))

    edges = [graph.edge(dev(0), dev(place)) for place in range(1, len(cells) + 1)]

    assert all(better.worth > worse.worth for better, worse in pairwise(edges))


def test_a_known_rate_decides_whatever_the_kind():
    assert worth("PIX", None, 26e9) > worth("NVLINK", 1, 25e9)
    assert worth("NVLINK", 1, 25e9) > worth("PIX", None, 25e9)
    assert worth(None, None, 1.0) > worth(None, None, None)


def test_a_planning_weight_orders_and_is_never_a_rate():
    edge = DeviceEdge(a=dev(0), b=dev(1), kind="NVLINK", lanes=4)

    assert edge.planned
    assert edge.worth[0] == 4 * 18e9
    assert edge.to_json()["bytes_per_s"] is None


def test_an_edge_between_nodes_has_the_rate_of_the_slower_nic():
    fast, slow = node_of("NV18", nics=8), node_of("NV18", name="node1", nics=8)

    edge = graph_of(fast, slow).edge(dev(0), dev(0, "node1"))

    assert (edge.kind, edge.bytes_per_s, edge.label) == ("NET", NIC_RATE, "NET")


def test_a_nic_is_no_faster_than_its_uplink_and_an_uplink_alone_will_do():
    with_nics = node_of("NV18", nics=8)
    without = node_of("NV18", name="node1")
    leaf = switch("leaf", "node0", "node1")
    edges = tuple(Edge(a=node, b="leaf", bytes_per_s=20e9) for node in ("node0", "node1"))

    edge = graph_of(with_nics, without, tiers=(leaf,), edges=edges).edge(dev(0), dev(0, "node1"))

    assert edge.bytes_per_s == 20e9


@pytest.mark.parametrize(("told", "rate"), [(11e9, 11e9), (90e9, NIC_RATE)])
def test_what_was_told_of_two_nodes_counts_as_far_as_their_nics_go(told, rate):
    nodes = node_of("NV18", nics=8), node_of("NV18", name="node1")
    edges = (Edge(a="node1", b="node0", bytes_per_s=told),)

    edge = graph_of(*nodes, edges=edges).edge(dev(0), dev(0, "node1"))

    assert edge.bytes_per_s == rate


def test_a_network_nobody_told_of_has_no_rate():
    nodes = node_of("NV18"), node_of("NV18", name="node1", nics=8)

    edge = graph_of(*nodes).edge(dev(0), dev(0, "node1"))

    assert (edge.kind, edge.bytes_per_s) == ("NET", None)


def test_an_nvlink_domain_joins_the_gpus_of_its_nodes_over_nvlink():
    nodes = node_of("NV18", gpus=4), node_of("NV18", name="node1", gpus=4)
    domain = switch("rack", "node0", "node1", kind=TierKind.NVLINK_DOMAIN)
    graph = graph_of(*nodes, tiers=(domain,))

    edge = graph.edge(dev(0), dev(3, "node1"))

    assert (edge.kind, edge.lanes, edge.bytes_per_s) == ("NVLINK", 18, None)
    assert graph.island(dev(0)) == graph.island(dev(3, "node1"))


def test_a_gpu_without_nvlink_is_not_in_the_domain_but_one_alone_is():
    broken = node_of("NV18", gpus=4, lost=[2])
    alone = Node(name="node1", gpus=(Gpu(index=0),))
    domain = switch("rack", "node0", "node1", kind=TierKind.NVLINK_DOMAIN)
    graph = graph_of(broken, alone, tiers=(domain,))

    assert graph.edge(dev(2), dev(0, "node1")).kind == "NET"
    assert graph.edge(dev(1), dev(0, "node1")).kind == "NVLINK"
    assert graph.edge(dev(1), dev(0, "node1")).lanes is None
    assert graph.island(dev(2)) == ("node0", 2)


@pytest.mark.parametrize(
    ("cell", "gpus", "switched"),
    [
        ("NV18", 8, True),
        ("NV12", 8, True),
        ("NV6", 16, True),
        ("NV8", 8, True),
        ("NV18", 4, True),
        ("NV6", 4, False),
        ("NV4", 4, False),
        ("NV18", 2, False),
        ("PIX", 8, False),
    ],
)
def test_more_links_than_a_gpu_has_are_a_switch(cell, gpus, switched):
    graph = graph_of(node_of(cell, gpus=gpus))

    assert [graph.is_switched(dev(gpu)) for gpu in range(gpus)] == [switched] * gpus


def test_a_cube_mesh_is_no_switch_and_one_island():
    graph = graph_of(node_of_table(DGX_1V))

    assert not any(graph.is_switched(dev(gpu)) for gpu in range(8))
    assert {graph.island(dev(gpu)) for gpu in range(8)} == {("node0", 0)}


def test_nearest_nics_are_those_of_the_node():
    node = node_of("NV18", gpus=8, nics=4)
    graph = graph_of(node)

    assert {gpu: graph.nearest_nics(dev(gpu)) for gpu in range(8)} == node.nearest_nics


def test_gpus_that_share_nearest_nics_take_them_in_turn():
    base = node_of("NV18", gpus=4, nics=2)
    same = tuple(
        type(pair)(gpu=pair.gpu, nic=pair.nic, kind=base.gpu_nics[0].kind) for pair in base.gpu_nics
    )
    node = Node(
        name="node0", gpus=base.gpus, nics=base.nics, gpu_links=base.gpu_links, gpu_nics=same
    )
    graph = graph_of(node)

    assert [graph.nic(dev(gpu)) for gpu in range(4)] == ["mlx5_0", "mlx5_1"] * 2


def test_a_nic_at_an_unknown_distance_is_on_no_rail():
    base = node_of("NV18", gpus=2, nics=1)
    unknown = tuple(type(pair)(gpu=pair.gpu, nic=pair.nic) for pair in base.gpu_nics)
    node = Node(
        name="node0", gpus=base.gpus, nics=base.nics, gpu_links=base.gpu_links, gpu_nics=unknown
    )
    graph = graph_of(node)

    assert (graph.nearest_nics(dev(0)), graph.nic(dev(0))) == ((), None)


def test_distance_counts_the_tiers_to_climb():
    nodes = [node_of("NV18", name=name, gpus=1) for name in "abcd"]
    tiers = (
        switch("spine"),
        switch("leaf0", "a", "b", parent="spine"),
        switch("leaf1", "c", parent="spine"),
    )
    graph = graph_of(*nodes, tiers=tiers)

    assert [graph.distance("a", other) for other in "abcd"] == [0, 1, 2, 3]
    assert all(graph.distance(a, b) == graph.distance(b, a) for a, b in combinations("abcd", 2))
