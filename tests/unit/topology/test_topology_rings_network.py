"""Rings over many nodes: racks, rails, NVLink domains, and what limits them."""

import time

import pytest
from ring_samples import NIC_RATE, NVLINK_RATE, cluster, fat_tree, gpus_of, node_of, switch

from topology import Edge, Gpu, Node, TierKind
from topology.rings import plan_rings


def h100(name, *, nics=8, gpus=8):
    return node_of("NV18", name=name, nics=nics, gpus=gpus, bytes_per_s=NVLINK_RATE)


def leaves_used(ring, topology):
    leaf = {node: tier.name for tier in topology.network.tiers for node in tier.nodes}
    return {leaf[device.node] for device in ring.order}


def boundary_crossings(ring, inside):
    """How often the ring enters or leaves a set of nodes."""
    return sum((edge.a.node in inside) != (edge.b.node in inside) for edge in ring.edges)


@pytest.mark.parametrize(
    ("count", "rack", "least"),
    [
        (2048, 32, 0),  # racks hold two groups
        (2048, 24, 43 * 2 * 8),  # 16 of 24 nodes in the rack, the 8 left join those of another
        (2048, 8, 128 * 2 * 8),  # two racks a group
    ],
)
def test_two_thousand_shuffled_nodes_cross_the_core_as_little_as_can_be(count, rack, least):
    topology = fat_tree(count, rack=rack)
    start = time.process_time()

    plan = plan_rings(topology, tp=8, cp=16)

    assert time.process_time() - start < 5  # 0.7 s where nothing else runs
    assert len(plan.rings) == count * 8 // 16
    assert sum(ring.crossings.switch for ring in plan.rings) == least
    devices = [device for ring in plan.rings for device in ring.order]
    assert len(set(devices)) == len(devices) == count * 8
    assert plan.notes == ()
    assert plan.bound_bytes_per_s == plan.achieved_bytes_per_s == NIC_RATE


def test_one_ring_over_a_shuffled_fat_tree_crosses_every_subtree_twice():
    topology = fat_tree(64, rack=4)

    plan = plan_rings(topology, tp=8, cp=64)

    ring = plan.rings[5]
    leaves = [tier for tier in topology.network.tiers if tier.nodes]
    assert all(boundary_crossings(ring, set(tier.nodes)) == 2 for tier in leaves)
    for spine in ("spine0", "spine1"):
        below = {node for tier in leaves if tier.parent == spine for node in tier.nodes}
        assert boundary_crossings(ring, below) == 2
    assert ring.crossings.switch == len(leaves)
    assert ring.crossings.node == 64


def test_a_group_takes_the_rack_that_fits_and_splits_no_other():
    sizes = {"leaf0": 3, "leaf1": 2, "leaf2": 1}
    names = {leaf: [f"{leaf}-{place}" for place in range(size)] for leaf, size in sizes.items()}
    tiers = [switch("spine"), *(switch(leaf, *names[leaf], parent="spine") for leaf in names)]
    nodes = [h100(name) for found in names.values() for name in found]

    topology = cluster(*nodes, tiers=tuple(tiers))
    plan = plan_rings(topology, tp=8, cp=4)

    assert leaves_used(plan.rings[0], topology) == {"leaf0", "leaf2"}
    assert any("left over" in note for note in plan.notes)


def test_devices_of_one_node_stand_together_and_a_split_node_keeps_good_pairs():
    bridges = {(0, 2): "NV4", (1, 3): "NV4"}
    nodes = [node_of("SYS", name=name, gpus=4, but=bridges) for name in "abc"]

    plan = plan_rings(cluster(*nodes), tp=1, cp=6)

    for ring in plan.rings:
        assert ring.crossings.node == 2
        assert sum(edge.kind == "NVLINK" for edge in ring.edges) == 3


def test_rails_meet_where_a_ring_goes_from_node_to_node():
    for count in (2, 3, 4, 5):
        plan = plan_rings(cluster(*(h100(f"n{i}") for i in range(count))), tp=1, cp=8 * count)

        [ring] = plan.rings
        between = [edge for edge in ring.edges if edge.a.node != edge.b.node]
        assert len(between) == count
        assert all(edge.a.gpu == edge.b.gpu for edge in between)
        assert not any("another rail" in note for note in plan.notes)


def test_rails_that_cannot_meet_are_noted():
    ends = {(0, 1): "NV1", (1, 2): "NV1"}
    nodes = [node_of("SYS", name=name, gpus=3, nics=3, but=ends) for name in "abc"]

    plan = plan_rings(cluster(*nodes), tp=1, cp=9)

    assert any("1 steps" in note and "another rail" in note for note in plan.notes)


def test_the_devices_of_a_station_are_lined_up_by_rail():
    straight = h100("a", gpus=2, nics=2)
    crossed = Node(
        name="b",
        gpus=straight.gpus,
        nics=straight.nics,
        gpu_links=straight.gpu_links,
        gpu_nics=tuple(
            type(pair)(gpu=1 - pair.gpu, nic=pair.nic, kind=pair.kind) for pair in straight.gpu_nics
        ),
    )

    plan = plan_rings(cluster(straight, crossed), tp=2, cp=2)

    assert [gpus_of(ring) for ring in plan.rings] == [[0, 1], [1, 0]]


def test_one_ring_that_leaves_nics_idle_is_warned_of_with_the_split():
    plan = plan_rings(cluster(h100("a"), h100("b")), tp=1, cp=16)

    [note] = [note for note in plan.notes if "idle" in note]
    assert "6 of 8 NICs stay idle on a and on 1 more nodes" in note
    assert "inner ring of 8 in each node x an outer ring of 2" in note
    assert plan.achieved_bytes_per_s == NIC_RATE
    assert plan.bound_bytes_per_s > 7 * NIC_RATE


def test_rings_on_all_rails_leave_no_nic_idle():
    plan = plan_rings(cluster(h100("a"), h100("b")), tp=8, cp=2)

    assert not any("idle" in note for note in plan.notes)
    assert plan.achieved_bytes_per_s == plan.bound_bytes_per_s == NIC_RATE


def test_no_split_is_offered_where_a_node_has_one_device_in_the_ring():
    nodes = [h100(name, gpus=2, nics=2) for name in "ab"]
    usable = [
        Node(
            name=node.name,
            gpus=(node.gpus[0], Gpu(index=1, mig=True)),
            nics=node.nics,
            gpu_links=node.gpu_links,
            gpu_nics=node.gpu_nics,
        )
        for node in nodes
    ]

    plan = plan_rings(cluster(*usable), tp=1, cp=2)

    [note] = [note for note in plan.notes if "idle" in note]
    assert note.endswith("one NIC only")


def test_rings_that_share_a_nic_share_its_rate():
    plan = plan_rings(cluster(h100("a", nics=2), h100("b", nics=2)), tp=8, cp=2)

    assert plan.achieved_bytes_per_s == plan.bound_bytes_per_s == NIC_RATE / 4


def test_the_uplink_of_a_rack_bounds_the_rings_that_cross_it():
    tiers = (
        switch("spine"),
        switch("leaf0", "a", parent="spine"),
        switch("leaf1", "b", parent="spine"),
    )
    edges = tuple(Edge(a=leaf, b="spine", bytes_per_s=80e9) for leaf in ("leaf0", "leaf1"))

    plan = plan_rings(cluster(h100("a"), h100("b"), tiers=tiers, edges=edges), tp=8, cp=2)

    assert plan.bound_bytes_per_s == plan.achieved_bytes_per_s == 10e9
    assert plan.rings[0].crossings.switch == 2


def nvl72():
    nodes = [node_of("NV18", name=f"tray{place:02}", gpus=4) for place in range(18)]
    rack = switch("rack", *(node.name for node in nodes), kind=TierKind.NVLINK_DOMAIN)
    return cluster(*nodes, tiers=(rack,))


@pytest.mark.parametrize(("tp", "cp"), [(4, 18), (8, 9), (1, 72), (72, 1), (36, 2)])
def test_an_nvlink_domain_is_one_island_for_groups_and_rings(tp, cp):
    plan = plan_rings(nvl72(), tp=tp, cp=cp)

    assert all(edge.kind == "NVLINK" for ring in plan.rings for edge in ring.edges)
    assert all(ring.crossings.island == 0 for ring in plan.rings)
    assert sum(len(ring.order) for ring in plan.rings) == 72
    assert plan.bound_bytes_per_s is None
    assert not any("idle" in note or "leaves" in note for note in plan.notes)


def test_groups_larger_than_a_node_stay_in_one_domain():
    nodes = [node_of("NV18", name=f"tray{place}", gpus=4) for place in range(8)]
    tiers = tuple(
        switch(f"rack{rack}", f"tray{rack}", f"tray{rack + 4}", kind=TierKind.NVLINK_DOMAIN)
        for rack in range(4)
    )

    plan = plan_rings(cluster(*nodes, tiers=tiers), tp=8, cp=4)

    for station in plan.groups[0]:
        assert len({int(device.node.removeprefix("tray")) % 4 for device in station}) == 1
    assert {edge.kind for ring in plan.rings for edge in ring.edges} == {"NET"}


@pytest.mark.parametrize("length", [1, 2, 7])
def test_cyclic_networks_end_in_a_plan(length):
    tiers = tuple(
        switch(f"s{place}", f"n{place}", parent=f"s{(place + 1) % length}")
        for place in range(length)
    )
    nodes = [h100(f"n{place}") for place in range(length)]

    plan = plan_rings(cluster(*nodes, tiers=tiers), tp=8, cp=length)

    assert len(plan.rings) == 8 if length > 1 else 1
    assert any("cycle" in note for note in plan.notes)


def test_what_nobody_told_of_the_network_is_no_crossing():
    plan = plan_rings(cluster(h100("a"), h100("b")), tp=8, cp=2)

    assert (plan.rings[0].crossings.node, plan.rings[0].crossings.switch) == (2, 0)


def told_rates(names, slow):
    """Rates between all pairs of nodes: slow for the pairs named."""
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return tuple(Edge(a=a, b=b, bytes_per_s=5e9 if (a, b) in slow else 40e9) for a, b in pairs)


@pytest.mark.parametrize("count", [5, 20])
def test_rates_between_nodes_decide_their_order(count):
    names = [f"n{place:02}" for place in range(count)]
    slow = {(names[place], names[place + 1]) for place in range(count - 1)}
    nodes = [h100(name, gpus=1, nics=1) for name in names]

    plan = plan_rings(cluster(*nodes, edges=told_rates(names, slow)), tp=1, cp=count)

    assert plan.rings[0].slowest.bytes_per_s == 40e9


def test_too_many_nodes_for_their_rates_keep_the_walk_and_say_so():
    names = [f"n{place:02}" for place in range(70)]
    nodes = [h100(name, gpus=1, nics=1) for name in names]
    edges = (Edge(a="n00", b="n01", bytes_per_s=5e9),)

    plan = plan_rings(cluster(*nodes, edges=edges), tp=1, cp=70)

    assert [device.node for device in plan.rings[0].order] == names
    assert any("70 nodes in a ring" in note for note in plan.notes)


def test_a_split_subtree_gives_whole_nodes_first():
    tiers = [switch("spine"), switch("leaf0", "a", "b", "c", parent="spine")]
    tiers += [switch("leaf1", "d", "e", "f", parent="spine")]
    nodes = [h100(name, gpus=2) for name in "abcdef"]

    plan = plan_rings(cluster(*nodes, tiers=tuple(tiers)), tp=1, cp=9)

    assert plan.rings[0].crossings.switch == 2
    assert [device.node for device in plan.rings[0].order] == list("aabbccdde")
