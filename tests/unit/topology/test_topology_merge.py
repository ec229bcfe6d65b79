"""Many topologies become one cluster."""

import json
import time
from dataclasses import replace

import pytest

from topology import Edge, Gpu, Link, LinkKind, Network, Node, Tier, TierKind, Topology
from topology.errors import TopologyError
from topology.gpu import Fabric, FabricState, Pcie
from topology.merge import join_nodes, least_offset_s
from topology.readers import read_topology
from topology.rings import plan_rings

RACK = "01234567-89ab-cdef-0123-456789abcdef"


def node_of(name, *, uuids=(), fabrics=(), driver=None):
    count = max(len(uuids), len(fabrics))
    return Node(
        name=name,
        gpus=tuple(
            Gpu(
                index=index,
                uuid=uuids[index] if uuids else None,
                fabric=fabrics[index] if fabrics else None,
            )
            for index in range(count)
        ),
        gpu_links=tuple(
            Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=18)
            for a in range(count)
            for b in range(a + 1, count)
        ),
        driver_version=driver,
    )


def alone(node, *, source="nvml", network=None):
    return Topology(source=source, nodes=(node,), network=network or Network())


def fabric(clique=0, *, state=FabricState.COMPLETED, cluster=RACK):
    return Fabric(state=state, cluster_uuid=cluster, clique=clique)


def names_of(topology):
    return [node.name for node in topology.nodes]


def test_nodes_stand_in_the_given_order_with_their_names():
    joined = join_nodes([alone(node_of(name, uuids=[f"GPU-{name}"])) for name in "cab"])

    assert names_of(joined) == ["c", "a", "b"]
    assert (joined.source, joined.network) == ("nvml", Network())


def test_sources_that_differ_are_mixed():
    parts = [alone(node_of("a")), alone(node_of("b"), source="sysfs")]

    assert join_nodes(parts).source == "mixed"


def test_nothing_to_join_is_refused():
    with pytest.raises(TopologyError, match="no topology"):
        join_nodes([])


def test_one_gpu_on_two_nodes_is_refused_by_name():
    parts = [
        alone(node_of("a", uuids=["GPU-1", "GPU-2"])),
        alone(node_of("b", uuids=["GPU-3", "GPU-1"])),
    ]

    with pytest.raises(TopologyError) as refused:
        join_nodes(parts)

    assert str(refused.value) == (
        "GPU-1: saw it as GPU 0 of a and as GPU 1 of b, wanted each GPU on one node"
    )
    assert "one a host" in refused.value.hint


def test_a_node_given_twice_is_taken_once():
    part = alone(node_of("a", uuids=["GPU-1"]))

    assert names_of(join_nodes([part, part])) == ["a"]


def test_nodes_of_one_name_are_numbered_by_their_gpus_not_by_who_came_first():
    parts = [alone(node_of("host", uuids=[uuid])) for uuid in ("GPU-2", "GPU-1")]

    forth, back = join_nodes(parts), join_nodes(parts[::-1])

    assert {node.gpus[0].uuid: node.name for node in forth.nodes} == {
        "GPU-1": "host#0",
        "GPU-2": "host#1",
    }
    assert set(forth.nodes) == set(back.nodes)
    assert forth.network.notes == ("2 nodes are named host: called host#0, host#1",)


def test_a_number_that_is_taken_is_passed_over():
    parts = [alone(node_of(name)) for name in ("a", "a#0", "a")]

    assert names_of(join_nodes(parts)) == ["a#1", "a#0", "a#2"]


def test_the_network_follows_a_node_that_is_renamed():
    network = Network(
        tiers=(Tier(name="leaf", kind=TierKind.SWITCH, nodes=("a",)),),
        edges=(Edge(a="a", b="leaf", bytes_per_s=50e9),),
    )
    parts = [alone(node_of("a")), alone(node_of("a"), network=network)]

    joined = join_nodes(parts).network

    assert joined.tiers == (Tier(name="leaf", kind=TierKind.SWITCH, nodes=("a#1",)),)
    assert joined.edges == (Edge(a="a#1", b="leaf", bytes_per_s=50e9),)


def test_tiers_of_one_name_are_one():
    leaves = [Tier(name="leaf", kind=TierKind.SWITCH, parent="top", nodes=(name,)) for name in "ab"]
    parts = [
        alone(node_of(name), network=Network(tiers=(leaf,)))
        for name, leaf in zip("ab", leaves, strict=True)
    ]

    assert join_nodes(parts).network.tiers == (replace(leaves[0], nodes=("a", "b")),)


@pytest.mark.parametrize("other", [{"parent": "b"}, {"kind": TierKind.BLOCK}])
def test_tiers_that_contradict_each_other_are_refused(other):
    leaf = Tier(name="leaf", kind=TierKind.SWITCH, parent="a")
    networks = [Network(tiers=(leaf,)), Network(tiers=(replace(leaf, **other),))]
    parts = [alone(node_of(n), network=net) for n, net in zip("xy", networks, strict=True)]

    with pytest.raises(TopologyError, match="two tiers named 'leaf' that differ"):
        join_nodes(parts)


def test_driver_versions_that_differ_are_noted_the_most_common_first():
    drivers = {"a": "535.1", "b": "550.2", "c": "550.2", "d": None}

    joined = join_nodes([alone(node_of(name, driver=d)) for name, d in drivers.items()])

    assert joined.network.notes == ("driver versions differ: 550.2 on b, c; 535.1 on a",)


def test_many_names_in_a_note_are_counted():
    parts = [alone(node_of(f"n{i}", driver="550" if i else "535")) for i in range(12)]

    (note,) = join_nodes(parts).network.notes

    assert "550 on n1, n2, n3, n4, n5, n6, n7, n8 and 3 more; 535 on n0" in note


def test_clocks_that_differ_are_noted_with_the_two_ends():
    parts = [alone(node_of(name)) for name in "abcd"]

    joined = join_nodes(parts, clock_offsets_s=[0.0, -0.4, None, 1.25])

    assert joined.network.notes == ("clocks differ by 1.65 s or more: b at -0.40 s, d at +1.25 s",)


def test_clocks_that_agree_are_not_noted():
    parts = [alone(node_of(name)) for name in "ab"]

    assert join_nodes(parts, clock_offsets_s=[0.02, -0.02]).network.notes == ()


@pytest.mark.parametrize(
    ("clock_s", "offset_s"), [(10.0, 0.0), (12.0, 0.0), (11.5, 0.0), (7.0, -3.0), (14.0, 2.0)]
)
def test_a_clock_read_while_we_wait_is_off_by_what_is_outside(clock_s, offset_s):
    assert least_offset_s(clock_s, asked_s=10.0, answered_s=12.0) == offset_s


def test_one_cluster_and_clique_on_two_hosts_is_an_nvlink_domain():
    parts = [alone(node_of(name, fabrics=[fabric(7)] * 4)) for name in "ab"]

    joined = join_nodes(parts)

    assert joined.network.tiers == (
        Tier(name=f"{RACK}.7", kind=TierKind.NVLINK_DOMAIN, nodes=("a", "b")),
    )
    assert plan_rings(joined, tp=8, cp=1).groups  # a group may cross hosts in a domain


@pytest.mark.parametrize(
    "second",
    [
        fabric(8),
        fabric(7, cluster="11111111-89ab-cdef-0123-456789abcdef"),
        fabric(7, cluster=None),
        fabric(7, state=FabricState.IN_PROGRESS),
        fabric(7, state=FabricState.FAILED),
        Fabric(),
    ],
)
def test_anything_else_is_no_domain(second):
    parts = [alone(node_of("a", fabrics=[fabric(7)])), alone(node_of("b", fabrics=[second]))]

    assert join_nodes(parts).network.tiers == ()


def test_a_node_in_several_domains_is_noted_and_in_none():
    parts = [
        alone(node_of("a", fabrics=[fabric(1), fabric(2)])),
        alone(node_of("b", fabrics=[fabric(1)])),
    ]

    network = join_nodes(parts).network

    assert network.tiers == ()
    assert network.notes == (f"node a: its GPUs are in several NVLink domains: {RACK}.1, {RACK}.2",)


def test_a_gpu_outside_the_domain_of_its_node_is_noted():
    parts = [alone(node_of(name, fabrics=[fabric(), Fabric()])) for name in "ab"]

    network = join_nodes(parts).network

    assert [tier.nodes for tier in network.tiers] == [("a", "b")]
    assert f"node a: GPU 1 not in NVLink domain {RACK}.0" in network.notes


def test_a_cluster_joined_twice_is_the_same_cluster():
    parts = [alone(node_of(name, uuids=[f"GPU-{name}"], fabrics=[fabric()])) for name in "ab"]
    more = alone(node_of("c", uuids=["GPU-c"], fabrics=[fabric()]))

    assert join_nodes([join_nodes(parts), more]) == join_nodes([*parts, more])


def test_recorded_inventories_in_files_become_one_domain(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in "ab"]
    for path in paths:
        part = alone(node_of(path.stem, uuids=[f"GPU-{path.stem}"], fabrics=[fabric()]))
        path.write_text(json.dumps(part.to_json()))

    network = read_topology(paths).network

    assert [(tier.kind, tier.nodes) for tier in network.tiers] == [("nvlink_domain", ("a", "b"))]


def test_one_node_recorded_idle_and_busy_is_one_node(tmp_path):
    idle = node_of("a", uuids=["GPU-1"])
    paths = [tmp_path / f"{generation}.json" for generation in (1, 5)]
    for path in paths:
        now = Pcie(generation=5, now_generation=int(path.stem))
        node = replace(idle, gpus=(replace(idle.gpus[0], pcie=now),))
        path.write_text(json.dumps(alone(node).to_json()))

    (node,) = read_topology(paths).nodes

    assert node.gpus[0].pcie == Pcie(generation=5, now_generation=1)


def test_files_that_share_a_gpu_are_refused(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in "ab"]
    for path in paths:
        path.write_text(json.dumps(alone(node_of(path.stem, uuids=["GPU-1"])).to_json()))

    with pytest.raises(TopologyError, match="GPU-1: saw it as GPU 0 of a and as GPU 0 of b"):
        read_topology(paths)


def test_sixty_four_recorded_nodes_take_under_a_second():
    texts = [
        json.dumps(
            alone(
                node_of(f"n{n}", uuids=[f"GPU-{n}-{i}" for i in range(8)], fabrics=[fabric()] * 8)
            ).to_json()
        )
        for n in range(64)
    ]

    start_s = time.perf_counter()
    joined = join_nodes([Topology.from_json(json.loads(text)) for text in texts])
    seconds = time.perf_counter() - start_s

    assert len(joined.network.tiers[0].nodes) == 64
    assert seconds < 1
