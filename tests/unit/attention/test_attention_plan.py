"""The staged plan: every pair once, every receive with its send, and no row too many."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention import Mask, Partition, Plan, PlanBytes, Sharding, Strategy
from cptune.attention.mask import Slice
from cptune.attention.plan import count_stages


def make_plan(
    seq_len: int, cp_size: int, *, sharding: str = "zigzag", mask: str = "causal", stages: int
) -> Plan:
    partition = Partition(seq_len=seq_len, cp_size=cp_size, sharding=Sharding(sharding))
    return Plan(partition=partition, mask=Mask(mask), stages=stages)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    cp_size = draw(st.integers(1, 6))
    return make_plan(
        draw(st.integers(1, 40)),
        cp_size,
        sharding=draw(st.sampled_from(Sharding)),
        mask=draw(st.sampled_from(Mask)),
        stages=draw(st.integers(min(1, cp_size - 1), cp_size - 1)),
    )


def attended(plan: Plan, rank: int) -> Counter[tuple[int, int]]:
    """Global (query, key) pairs that the schedule of `rank` attends, with how often."""
    schedule = plan.schedule(rank)
    own = plan.partition.positions(rank)
    pairs = count_pairs(schedule.local, own, own)
    for stage in schedule.stages:
        buffer = [
            position
            for peer, rows in stage.recv
            for position in plan.partition.positions(peer)[rows.start : rows.stop]
        ]
        pairs += count_pairs(stage.slices, own, buffer)
    return pairs


def count_pairs(slices: tuple[Slice, ...], own: list[int], buffer: list[int]) -> Counter:
    return Counter(
        (own[one.q_start + q], buffer[one.kv_start + kv])
        for one in slices
        for q in range(one.q_stop - one.q_start)
        for kv in range(one.kv_stop - one.kv_start)
        if not one.causal or kv <= q
    )


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_pair_that_the_mask_allows_is_attended_exactly_once(plan: Plan) -> None:
    whole = sum((attended(plan, rank) for rank in range(plan.partition.cp_size)), Counter())
    tokens = range(plan.partition.seq_len)
    allowed = {(q, kv) for q in tokens for kv in tokens if plan.mask is Mask.FULL or kv <= q}
    assert whole == Counter(allowed)


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_receive_has_its_send_in_the_same_stage(plan: Plan) -> None:
    schedules = [plan.schedule(rank) for rank in range(plan.partition.cp_size)]
    for index in range(plan.stages):
        received = {
            (peer, rank, rows)
            for rank, s in enumerate(schedules)
            for peer, rows in s.stages[index].recv
        }
        sent = {
            (rank, peer, rows)
            for rank, s in enumerate(schedules)
            for peer, rows in s.stages[index].send
        }
        assert received == sent


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_row_that_moves_is_attended(plan: Plan) -> None:
    for rank in range(plan.partition.cp_size):
        for stage in plan.schedule(rank).stages:
            rows = sum(rows.num_rows for _, rows in stage.recv)
            used = {kv for one in stage.slices for kv in range(one.kv_start, one.kv_stop)}
            assert used == set(range(rows))


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_pairs_count_what_is_attended(plan: Plan) -> None:
    for rank in range(plan.partition.cp_size):
        assert plan.pairs(rank) == attended(plan, rank).total()


def test_ring_of_zigzag_8_over_2() -> None:
    plan = make_plan(8, 2, stages=1)
    first, second = plan.schedule(0), plan.schedule(1)
    # Rank 0 holds 0 1 6 7: its late half sees all of 2 3 4 5.
    assert first.stages[0].recv == ((1, (0, 4)),)
    assert first.stages[0].send == ((1, (0, 2)),)
    assert first.stages[0].slices == (
        Slice(q_start=2, q_stop=4, kv_start=0, kv_stop=4, causal=False),
    )
    # Rank 1 sees of rank 0 only the early half.
    assert second.stages[0].recv == ((0, (0, 2)),)
    assert second.stages[0].send == ((0, (0, 4)),)
    assert second.local == (Slice(q_start=0, q_stop=4, kv_start=0, kv_stop=4, causal=True),)


def test_a_stage_takes_from_the_left_and_gives_to_the_right() -> None:
    plan = make_plan(40, 5, mask="full", stages=4)
    stages = plan.schedule(1).stages
    assert [peer for stage in stages for peer, _ in stage.recv] == [0, 4, 3, 2]
    assert [peer for stage in stages for peer, _ in stage.send] == [2, 3, 4, 0]


@pytest.mark.parametrize(
    ("stages", "sizes"), [(1, [5]), (2, [2, 3]), (3, [1, 2, 2]), (5, [1, 1, 1, 1, 1])]
)
def test_peers_are_grouped_evenly(stages: int, sizes: list[int]) -> None:
    plan = make_plan(60, 6, mask="full", stages=stages)
    assert [len(stage.recv) for stage in plan.schedule(0).stages] == sizes


def test_a_causal_contiguous_ring_moves_nothing_into_the_first_rank() -> None:
    plan = make_plan(64, 4, sharding="contiguous", stages=3)
    received = [
        sum(rows.num_rows for stage in plan.schedule(rank).stages for _, rows in stage.recv)
        for rank in range(4)
    ]
    assert received == [0, 16, 32, 48]


def test_rows_received_by_zigzag_64_over_4() -> None:
    plan = make_plan(64, 4, stages=3)
    received = [
        sum(rows.num_rows for stage in plan.schedule(rank).stages for _, rows in stage.recv)
        for rank in range(4)
    ]
    assert received == [48, 40, 32, 24]


@pytest.mark.parametrize("stages", [1, 3, 7])
@pytest.mark.parametrize(
    ("sharding", "mask", "share"),
    [("zigzag", "causal", 0.75), ("contiguous", "causal", 0.5), ("zigzag", "full", 1.0)],
)
def test_mean_bytes_follow_the_need_only_formula(
    sharding: str, mask: str, share: float, stages: int
) -> None:
    plan = make_plan(256, 8, sharding=sharding, mask=mask, stages=stages)
    size = {"kv_heads": 4, "head_dim": 32, "itemsize": 2}
    shard_bytes = 2 * (256 // 8) * 4 * 32 * 2
    costs = [plan.bytes(rank, **size) for rank in range(8)]
    for name in ("forward_sent", "forward_received"):
        assert sum(getattr(one, name) for one in costs) / 8 == share * 7 * shard_bytes
    for name in ("backward_sent", "backward_received"):
        assert sum(getattr(one, name) for one in costs) / 8 == 2 * share * 7 * shard_bytes


def test_bytes_of_one_rank() -> None:
    plan = make_plan(8, 2, stages=1).bind(kv_heads=2, head_dim=8, itemsize=4)
    row_bytes = 2 * 2 * 8 * 4
    assert plan.bytes(0) == PlanBytes(
        forward_sent=2 * row_bytes,
        forward_received=4 * row_bytes,
        backward_sent=(2 + 4) * row_bytes,
        backward_received=(4 + 2) * row_bytes,
    )


def test_given_sizes_win_over_bound_ones_and_binding_keeps_the_first() -> None:
    plan = make_plan(8, 2, stages=1).bind(kv_heads=2, head_dim=8, itemsize=4)
    assert plan.bytes(0, itemsize=2).forward_sent == plan.bytes(0).forward_sent // 2
    assert plan.bind(kv_heads=9, head_dim=9, itemsize=9) == plan


def test_bytes_without_a_size_say_what_is_wanted() -> None:
    plan = make_plan(8, 2, stages=1).bind(kv_heads=2, head_dim=None, itemsize=4)
    with pytest.raises(ValueError, match=r"head_dim is not known, wanted .*attend once"):
        plan.bytes(0)


def test_zigzag_gives_each_rank_equal_work() -> None:
    assert make_plan(64, 4, stages=3).imbalance() == pytest.approx(1.0, abs=0.01)
    assert make_plan(64, 4, sharding="contiguous", stages=3).imbalance() > 1.7


def test_the_number_of_stages_does_not_change_what_moves_or_is_computed() -> None:
    size = {"kv_heads": 1, "head_dim": 1, "itemsize": 1}
    for one, two in pairwise(make_plan(37, 5, stages=stages) for stages in (1, 2, 3, 4)):
        for rank in range(5):
            assert one.bytes(rank, **size) == two.bytes(rank, **size)
            assert one.pairs(rank) == two.pairs(rank)


@pytest.mark.parametrize(("stages", "nearest"), [(0, 1), (4, 3), (-2, 1)])
def test_stages_out_of_range_are_refused(stages: int, nearest: int) -> None:
    with pytest.raises(
        ValueError, match=rf"stages is {stages}, wanted 1\.\.3.*nearest is {nearest}"
    ):
        make_plan(8, 4, stages=stages)


def test_strategies_name_numbers_of_stages() -> None:
    assert count_stages(Strategy.RING, cp_size=4, stages=None) == 3
    assert count_stages(Strategy.RING, cp_size=4, stages=2) == 2
    assert count_stages(Strategy.ALL_GATHER, cp_size=4, stages=None) == 1
    assert count_stages(Strategy.ALL_GATHER, cp_size=4, stages=1) == 1
    assert {count_stages(one, cp_size=1, stages=None) for one in Strategy} == {0}


def test_stages_that_contradict_the_strategy_are_refused() -> None:
    with pytest.raises(ValueError, match="stages is 2, wanted 1 for strategy all_gather"):
        count_stages(Strategy.ALL_GATHER, cp_size=4, stages=2)
    with pytest.raises(ValueError, match="stages is 1, wanted None: one rank"):
        count_stages(Strategy.RING, cp_size=1, stages=1)
