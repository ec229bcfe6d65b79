"""Groups and rings inside one machine: who takes part, who is left out, what is refused."""

import json

import pytest
from ring_samples import DGX_1V, NVLINK_RATE, cluster, gpus_of, labels_of, node_of, node_of_table

from topology import Gpu, Node, TopologyError
from topology.rings import plan_rings

H100 = node_of("NV18", bytes_per_s=NVLINK_RATE)
BRIDGES = {(0, 2): "NV12", (1, 3): "NV12", (4, 5): "NV12", (6, 7): "NV12"}


def plan(*nodes, tp=1, cp=1, **network):
    return plan_rings(cluster(*nodes, **network), tp=tp, cp=cp)


def without(node, *gone):
    """The node as its source sees it with some GPUs missing."""
    return Node(
        name=node.name,
        gpus=tuple(gpu for gpu in node.gpus if gpu.index not in gone),
        gpu_links=tuple(x for x in node.gpu_links if not {x.a, x.b} & set(gone)),
    )


def test_behind_a_switch_the_given_order_stays():
    [ring] = plan(H100, cp=8).rings

    assert gpus_of(ring) == list(range(8))
    assert (ring.crossings.island, ring.crossings.node, ring.crossings.switch) == (0, 0, 0)
    assert ring.leaving == ()


def test_json_is_exactly_the_contract():
    plan_json = plan(H100, cp=2).to_json()

    assert json.loads(json.dumps(plan_json)) == plan_json
    assert list(plan_json) == ["rings", "bound_bytes_per_s", "notes"]
    ends = {"a": {"node": "node0", "gpu": 0}, "b": {"node": "node0", "gpu": 1}}
    edge = {**ends, "kind": "NVLINK", "bytes_per_s": NVLINK_RATE}
    back = {"a": ends["b"], "b": ends["a"], "kind": "NVLINK", "bytes_per_s": NVLINK_RATE}
    assert plan_json["rings"][0] == {
        "order": [ends["a"], ends["b"]],
        "edges": [edge, back],
        "slowest": edge,
        "crossings": {"island": 0, "node": 0, "switch": 0},
    }
    assert len(plan_json["rings"]) == 4


def test_unknown_rates_stay_null():
    found = plan(node_of("NV18"), cp=8)

    assert found.to_json()["bound_bytes_per_s"] is None
    assert found.achieved_bytes_per_s is None
    assert all(edge.bytes_per_s is None for edge in found.rings[0].edges)
    assert found.rings[0].slowest.planned


def test_the_best_ring_comes_first():
    node = node_of("SYS", gpus=4, but={(0, 1): "PXB", (2, 3): "PIX"})

    assert [gpus_of(ring) for ring in plan(node, cp=2).rings] == [[2, 3], [0, 1]]


def test_tensor_parallel_groups_take_the_bridges_and_rings_go_between():
    found = plan(node_of("SYS", but=BRIDGES), tp=2, cp=2)

    stations = [sorted(d.gpu for d in station) for group in found.groups for station in group]
    assert sorted(stations) == [[0, 2], [1, 3], [4, 5], [6, 7]]
    assert len(found.rings) == 4
    assert all(edge.kind == "SYS" for ring in found.rings for edge in ring.edges)


def test_ring_r_joins_the_devices_of_tensor_parallel_rank_r():
    found = plan(node_of_table(DGX_1V), tp=4, cp=2)

    [group] = found.groups
    for rank, ring in enumerate(found.rings):
        assert list(ring.order) == [station[rank] for station in group]
    assert [labels_of(ring) for ring in found.rings] == [["NV2"] * 2] * 2 + [["NV1"] * 2] * 2


def test_devices_are_lined_up_so_that_every_step_is_a_link():
    found = plan(node_of_table(DGX_1V), tp=2, cp=4)

    assert {edge.kind for ring in found.rings for edge in ring.edges} == {"NVLINK"}
    stations = found.groups[0]
    assert all(
        any({d.gpu for d in station} == pair for pair in ({0, 3}, {1, 2}, {5, 6}, {4, 7}))
        for station in stations
    )


def test_with_cp_of_one_the_rings_are_the_tensor_parallel_groups():
    found = plan(node_of_table(DGX_1V), tp=8, cp=1)

    [ring] = found.rings
    assert gpus_of(ring) == [0, 3, 2, 1, 5, 6, 7, 4]
    assert any("tensor-parallel groups" in note for note in found.notes)


def test_one_device_alone_is_a_ring_without_edges():
    found = plan(H100, tp=1, cp=1)

    assert len(found.rings) == 8
    assert found.rings[3].to_json()["slowest"] is None
    assert found.bound_bytes_per_s is None


def test_a_gpu_that_lost_its_nvlinks_is_left_out_where_it_can_be():
    found = plan(node_of("NV18", lost=[2]), cp=4)

    [ring] = found.rings
    assert gpus_of(ring) == [0, 1, 3, 4]
    assert any("node0:2; left out" in note for note in found.notes)
    assert any("left over: node0:5, node0:6, node0:7" in note for note in found.notes)


def test_a_gpu_that_lost_its_nvlinks_is_used_where_no_ring_is_possible_without():
    found = plan(node_of("NV18", lost=[2]), cp=8)

    [ring] = found.rings
    assert sorted(gpus_of(ring)) == list(range(8))
    assert labels_of(ring) == ["NV18"] * 6 + ["SYS"] * 2
    assert any("node0:2; used" in note for note in found.notes)


def test_gpus_that_never_had_a_bridge_are_not_called_broken():
    found = plan(node_of("SYS", gpus=4, but={(0, 1): "NV12"}), cp=2)

    assert len(found.rings) == 2
    assert not any("no NVLink" in note for note in found.notes)


def test_mig_devices_are_left_out_and_noted():
    gpus = tuple(Gpu(index=index, mig=index == 1) for index in range(8))
    node = Node(name="node0", gpus=gpus, gpu_links=H100.gpu_links)

    found = plan(node, cp=4)

    assert [gpus_of(ring) for ring in found.rings] == [[0, 2, 3, 4]]
    assert any("MIG" in note and "node0:1" in note for note in found.notes)


def test_a_missing_gpu_and_a_smaller_node_are_noted():
    small = without(node_of("NV18", name="node1"), 3)

    found = plan(H100, small, node_of("NV18", name="node2"), cp=2)

    assert any("node1: no GPU 3 among 0-7" in note for note in found.notes)
    assert any("fewer GPUs than the 8 of most nodes: node1" in note for note in found.notes)
    assert any("left over: node1:7" in note for note in found.notes)


def test_tensor_parallelism_that_leaves_its_island_is_noted():
    found = plan(node_of("SYS", but=BRIDGES), tp=8, cp=1)

    assert any("leaves its NVLink island in 1 group" in note for note in found.notes)
    assert not any("leaves its" in note for note in plan(node_of("SYS"), tp=8).notes)


@pytest.mark.parametrize(
    ("degrees", "message", "hint"),
    [
        ({"tp": 0, "cp": 1}, "tp: saw 0", "tp = 1"),
        ({"tp": 1, "cp": 0}, "cp: saw 0", "cp = 1"),
        ({"tp": 16, "cp": 1}, "tp=16: wanted a tensor-parallel group in one node", "tp=8"),
        ({"tp": 8, "cp": 3}, "tp=8, cp=3: wanted 3", "cp=2 with tp=8, or tp=4 with cp=3"),
        ({"tp": 1, "cp": 17}, "enough for 16", "cp=16 with tp=1"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_nearest_that_can(degrees, message, hint):
    other = without(node_of("NV18", name="node1"))

    with pytest.raises(TopologyError) as refused:
        plan(H100, other, **degrees)

    assert message in str(refused.value)
    assert hint in refused.value.hint


def test_a_machine_without_gpus_has_no_ring():
    with pytest.raises(TopologyError, match="wanted 4 GPUs, saw 0 usable GPUs on 1 node"):
        plan(Node(name="laptop"), tp=2, cp=2)


def test_many_unlike_places_get_a_heuristic_order_and_its_gap():
    pairs = {(a, b): "PIX" for a in range(20) for b in range(a + 1, 20) if a // 5 == b // 5}

    found = plan(node_of("SYS", gpus=20, but=pairs), cp=20)

    [note] = [note for note in found.notes if "heuristics" in note]
    assert "20 unlike places" in note
    assert "as good as can be" in note
    assert labels_of(found.rings[0]) == ["PIX"] * 16 + ["SYS"] * 4


def test_a_gap_that_is_left_is_told():
    two_cliques_and_a_bridge = {
        (a, b): "NV2" for a in range(20) for b in range(a + 1, 20) if a // 10 == b // 10
    } | {(9, 10): "NV2"}

    found = plan(node_of("SYS", gpus=20, but=two_cliques_and_a_bridge), cp=20)

    [note] = [note for note in found.notes if "heuristics" in note]
    assert "its slowest edge is SYS, no order beats NV2" in note


@pytest.mark.parametrize(
    ("cell", "gpus", "bound"),
    [("NV18", 8, NVLINK_RATE), ("NV6", 4, 3 * NVLINK_RATE), ("PIX", 4, NVLINK_RATE)],
)
def test_the_bound_is_the_port_of_a_gpu_or_all_links_of_a_mesh(cell, gpus, bound):
    found = plan(node_of(cell, gpus=gpus, bytes_per_s=NVLINK_RATE), cp=gpus)

    assert (found.bound_bytes_per_s, found.achieved_bytes_per_s) == (bound, NVLINK_RATE)


def test_the_bound_counts_the_way_out_of_an_island():
    node = node_of("PHB", gpus=4, bytes_per_s=12e9, but={(0, 1): "NV4", (2, 3): "NV4"})
    faster = [
        link
        if link.lanes is None
        else type(link)(a=link.a, b=link.b, kind=link.kind, lanes=4, bytes_per_s=100e9)
        for link in node.gpu_links
    ]
    node = Node(name="node0", gpus=node.gpus, gpu_links=tuple(faster))

    found = plan(node, cp=4)

    assert (found.bound_bytes_per_s, found.achieved_bytes_per_s) == (24e9, 12e9)
    assert found.rings[0].crossings.island == 2
    assert [edge.kind for edge in found.rings[0].leaving] == ["PHB", "PHB"]
