"""Over a boundary a row goes once, in the fewest blocks, and node-local peers come first."""

import pytest

from cptune.attention import Mask, Partition, Plan, Sharding
from cptune.attention.two_level import build_sites, spans_nodes

SIZES = {"heads": 8, "kv_heads": 4, "head_dim": 16, "itemsize": 2}


def make_plan(nodes: str | None, *, cp_size: int, stages: int | None = None) -> Plan:
    partition = Partition(seq_len=16 * cp_size, cp_size=cp_size, sharding=Sharding.ZIGZAG)
    return Plan(
        partition=partition,
        mask=Mask.CAUSAL,
        stages=stages or cp_size - 1,
        nodes=None if nodes is None else tuple(nodes),
        **SIZES,
    )


def crossing_blocks(plan: Plan, nodes: str) -> list[float]:
    """Blocks over the boundary in each direction, forward and backward (keys twice, gradients)."""
    rows = {"ab": 0, "ba": 0}
    for rank in range(len(nodes)):
        for stage in plan.schedule(rank).stages:
            for one in stage.recv:
                if nodes[one.peer] != nodes[rank]:
                    rows[nodes[one.peer] + nodes[rank]] += 2 * one.num_rows
                    rows[nodes[rank] + nodes[one.peer]] += one.num_rows
    return [count / (plan.partition.seq_len / len(nodes)) for count in rows.values()]


def test_two_hosts_of_two_ranks_need_five_blocks_where_a_flat_plan_needs_ten() -> None:
    nodes = "aabb"
    assert max(crossing_blocks(make_plan(None, cp_size=4), nodes)) == 10
    assert max(crossing_blocks(make_plan(nodes, cp_size=4), nodes)) == 5


@pytest.mark.parametrize("nodes", ["aabb", "abab", "aaabbb", "aaabb", "aabbcc", "abbbb", "aabbccc"])
@pytest.mark.parametrize("stages", [None, 1, 2])
def test_a_row_crosses_into_a_node_once(nodes: str, stages: int | None) -> None:
    plan = make_plan(nodes, cp_size=len(nodes), stages=stages)
    for here in set(nodes):
        crossed = [
            (one.peer, row)
            for rank in range(len(nodes))
            if nodes[rank] == here
            for stage in plan.schedule(rank).stages
            for one in stage.recv
            if nodes[one.peer] != here
            for rows in one.rows
            for row in range(*rows)
        ]
        assert len(crossed) == len(set(crossed)) > 0


def test_peers_of_the_node_come_first_and_nobody_waits_for_the_boundary_to_start() -> None:
    nodes = "aaabbb"
    for rank in range(6):
        stages = make_plan(nodes, cp_size=6).schedule(rank).stages
        local = [all(nodes[one.peer] == nodes[rank] for one in stage.recv) for stage in stages]
        assert local == [True, True, False, True, True]
        assert [stage.post for stage in stages] == [-1, 0, -1, 2, 3]
        assert [stage.source for stage in stages] == [None, None, None, 2, 2]


def test_handed_on_gradients_travel_in_the_type_they_are_summed_in() -> None:
    nodes = "aabb"
    plan = make_plan(nodes, cp_size=4)
    stages = plan.schedule(0).stages
    row_bytes = 2 * 4 * 16
    handed = sum(one.num_rows for stage in stages if stage.source is not None for one in stage.recv)
    taken = sum(stage.num_rows for stage in stages)
    given = sum(one.num_rows for stage in stages for one in stage.send)
    wanted = row_bytes * (2 * given + 2 * (taken - handed) + 4 * handed)
    assert plan.bytes(0).backward_sent == wanted


def test_a_group_of_one_node_or_of_lone_ranks_is_flat() -> None:
    assert not spans_nodes("aaa")
    assert not spans_nodes("abc")
    assert spans_nodes("aab")
    flat = make_plan(None, cp_size=4)
    for nodes in ("aaaa", "abcd"):
        plan = make_plan(nodes, cp_size=4)
        assert [plan.schedule(rank) for rank in range(4)] == [
            flat.schedule(rank) for rank in range(4)
        ]


def test_gateways_are_spread_over_the_node() -> None:
    sites = build_sites("aabbb")
    assert [sites.gateway(0, owner) for owner in (2, 3, 4)] == [0, 1, 0]
    assert [sites.gateway(1, owner) for owner in (0, 1)] == [2, 3]
    assert sites.beside(2, 1) == 3
    assert sites.beside(0, 2) is None


def test_ulysses_groups_are_filled_node_by_node() -> None:
    partition = Partition(seq_len=64, cp_size=4, sharding=Sharding.ZIGZAG)
    plan = Plan(
        partition=partition, mask=Mask.CAUSAL, stages=1, ulysses=2, nodes=("a", "b", "a", "b")
    )
    assert plan.groups() == ((0, 2), (1, 3))
    assert plan.peers(2) == (2, 3)
    assert plan.seat(3) == (1, 1)
    with pytest.raises(ValueError, match=r"rank is 7, wanted 0\.\.3; nearest is 3"):
        plan.seat(7)
