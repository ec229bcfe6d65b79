"""A probe's ranks are where the planner puts rings, and its verdict is the promise, kept or not."""

import math

import pytest

from cptune.domain.probe import EdgeReading, ProbeAsk, Verdict, join_readings
from cptune.domain.probe_plan import plan_probe
from topology import Edge, Gpu, Link, LinkKind, Network, Node, Topology
from topology.errors import TopologyError

PAYLOAD = 1 << 20


def hosts(*names, edges=(), gpus=0, rate=None):
    pairs = [(a, b) for a in range(gpus) for b in range(a + 1, gpus)]
    return Topology(
        source="test",
        nodes=tuple(
            Node(
                name=name,
                gpus=tuple(Gpu(index=index, uuid=f"GPU-{name}-{index}") for index in range(gpus)),
                gpu_links=tuple(
                    Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=18, bytes_per_s=rate)
                    for a, b in pairs
                ),
            )
            for name in names
        ),
        network=Network(edges=tuple(edges)),
    )


def ends(plan):
    return [(edge.a_rank, edge.b_rank) for edge in plan.edges]


def names(plan):
    return [device.name for device in plan.devices]


def probe_of(topology, *, rates, share=0.5, cp=4, tp=1):
    """The probe whose edges have these rates, alone; half of it when all are in use."""
    ask = ProbeAsk(cp=cp, tp=tp, share=share, payload_mib=1)
    plan = plan_probe(topology, tp=tp, cp=cp)
    readings = tuple(
        EdgeReading(
            a_rank=edge.a_rank,
            b_rank=edge.b_rank,
            payload_bytes=PAYLOAD,
            idle_s=PAYLOAD / rate,
            busy_s=2 * PAYLOAD / rate,
        )
        for edge, rate in zip(plan.edges, rates, strict=True)
    )
    return join_readings(plan, readings, ask=ask, transport="gloo")


def test_cpu_ranks_are_spread_over_the_nodes_and_the_ring_enters_each_once():
    plan = plan_probe(hosts("a", "b"), tp=1, cp=4)

    assert names(plan) == ["a/cpu0", "a/cpu1", "b/cpu0", "b/cpu1"]
    assert ends(plan) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert [edge.axis for edge in plan.edges] == ["cp"] * 4
    assert sum(plan.devices[a].node != plan.devices[b].node for a, b in ends(plan)) == 2
    assert plan.notes == ("no node has a GPU: CPU processes are measured in their place",)


def test_only_what_the_topology_tells_is_promised():
    edge = Edge(a="a", b="b", bytes_per_s=25e6)

    plan = plan_probe(hosts("a", "b", edges=[edge]), tp=1, cp=4)

    assert [edge.promised_bytes_per_s for edge in plan.edges] == [None, 25e6, None, 25e6]
    assert [edge.kind for edge in plan.edges] == [None, "NET", None, "NET"]


def test_tensor_groups_of_cpu_ranks_stay_in_their_node_and_each_rank_of_them_has_its_ring():
    plan = plan_probe(hosts("a", "b"), tp=2, cp=3)

    assert names(plan) == ["a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3", "b/cpu0", "b/cpu1"]
    assert ends(plan) == [(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)]
    assert [edge.ring for edge in plan.edges] == [0, 0, 0, 1, 1, 1]


def test_gpus_are_taken_as_the_planner_takes_them():
    plan = plan_probe(hosts("a", gpus=8, rate=478e9), tp=2, cp=2)

    assert len(plan.devices) == 8
    assert plan.devices[3].name == "a/cuda3"
    assert plan.devices[3].uuid == "GPU-a-3"
    assert {edge.promised_bytes_per_s for edge in plan.edges} == {478e9}
    assert {edge.ring for edge in plan.edges} == {0, 1, 2, 3}


def test_with_cp_of_one_the_edges_are_those_of_the_tensor_groups():
    plan = plan_probe(hosts("a"), tp=2, cp=1)

    assert ends(plan) == [(0, 1), (1, 0)]
    assert {edge.axis for edge in plan.edges} == {"tp"}


def test_too_few_gpus_are_refused():
    with pytest.raises(TopologyError, match="wanted 4 tensor-parallel groups"):
        plan_probe(hosts("a", gpus=2), tp=1, cp=4)


@pytest.mark.parametrize(
    ("share", "rate", "verdict"),
    [
        (0.5, 12.5e6, Verdict.KEPT),
        (0.5, 12.4e6, Verdict.BELOW),
        (0.9, 12.5e6, Verdict.BELOW),
        (1.0, 25e6, Verdict.KEPT),
        (0.5, 1e12, Verdict.KEPT),
    ],
)
def test_an_edge_alone_keeps_its_promise_from_the_share_on(share, rate, verdict):
    edge = Edge(a="a", b="b", bytes_per_s=25e6)
    probe = probe_of(hosts("a", "b", edges=[edge]), rates=[1e9, rate, 1e9, 25e6], share=share)

    found = [edge.verdict(share=share) for edge in probe.edges]

    assert found == [Verdict.NOTHING_PROMISED, verdict, Verdict.NOTHING_PROMISED, Verdict.KEPT]
    assert [edge.b.name for edge in probe.below] == ["b/cpu0"] * (verdict is Verdict.BELOW)


def test_a_slow_edge_that_nobody_promised_is_never_below():
    probe = probe_of(hosts("a", "b"), rates=[1.0] * 4)

    assert probe.below == ()


def test_what_all_at_once_costs_is_told_and_not_judged():
    edge = Edge(a="a", b="b", bytes_per_s=25e6)
    probe = probe_of(hosts("a", "b", edges=[edge]), rates=[1e9, 20e6, 1e9, 20e6], share=0.7)

    rows = probe.rows()

    assert rows[1]["busy_bytes_per_s"] == pytest.approx(10e6)
    assert rows[1]["promised_share"] == pytest.approx(0.8)
    assert probe.below == ()


def test_an_edge_that_was_not_measured_is_no_probe():
    plan = plan_probe(hosts("a"), tp=1, cp=2)

    with pytest.raises(KeyError):
        join_readings(plan, (), ask=ProbeAsk(cp=2), transport="gloo")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cp": 1}, "wanted 2 ranks or more"),
        ({"cp": 0}, "cp is 0; wanted 1 or more"),
        ({"cp": 2, "repeats": 0}, "repeats is 0"),
        ({"cp": 2, "payload_mib": -1}, "payload_mib is -1"),
        ({"cp": 2, "share": 0.0}, "share is 0.0; wanted above 0"),
        ({"cp": 2, "share": 1.5}, "share is 1.5"),
        ({"cp": 2, "share": math.nan}, "share is nan"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_value(fields, said):
    with pytest.raises(ValueError, match=said):
        ProbeAsk(**fields).check()
