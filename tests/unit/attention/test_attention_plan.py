"""The staged plan: every pair once, every receive with its send, and no row too many."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention import Mask, Partition, Pattern, Plan, PlanBytes, Sharding
from cptune.attention.slices import Slice
from cptune.attention.stages import Stage, Transfer

SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 8, "itemsize": 2}


def make_plan(
    seq_len: int, cp_size: int, *, sharding: str = "zigzag", mask: str = "causal", stages: int
) -> Plan:
    partition = Partition(seq_len=seq_len, cp_size=cp_size, sharding=Sharding(sharding))
    return Plan(partition=partition, mask=Mask(mask), stages=stages)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    cp_size = draw(st.integers(1, 6))
    mask = draw(st.sampled_from(Mask))
    docs = (draw(st.integers(1, 40)),)
    if mask is Mask.DOCUMENT:
        docs = tuple(draw(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum)))
    window = None if mask is Mask.FULL else draw(st.none() | st.integers(0, 9))
    ulysses = draw(st.sampled_from([d for d in range(1, cp_size + 1) if cp_size % d == 0]))
    ring = cp_size // ulysses
    pattern = Pattern(
        mask=mask,
        seq_len=sum(docs),
        docs=docs if mask is Mask.DOCUMENT else (),
        window=window,
    )
    return Plan(
        partition=Partition(
            seq_len=sum(docs),
            cp_size=cp_size,
            sharding=draw(st.sampled_from(Sharding)),
            pattern=pattern,
        ),
        mask=mask,
        docs=pattern.docs,
        window=window,
        stages=draw(st.integers(min(1, ring - 1), max(0, ring - 1))),
        ulysses=ulysses,
        nodes=draw(st.none() | st.tuples(*[st.sampled_from("abc")] * cp_size)),
    )


def allowed(plan: Plan) -> Counter[tuple[int, int]]:
    tokens = range(plan.partition.seq_len)
    lengths = plan.docs or (len(tokens),)
    owner = [index for index, length in enumerate(lengths) for _ in range(length)]
    reach = len(tokens) if plan.window is None else plan.window
    return Counter(
        (q, kv)
        for q in tokens
        for kv in tokens
        if plan.mask is Mask.FULL or (owner[q] == owner[kv] and 0 <= q - kv <= reach)
    )


def rings(plan: Plan) -> list[list[int]]:
    """The rings of a plan, by ranks of the context group."""
    return [list(one) for one in zip(*plan.groups(), strict=True)]


def run_ring(plan: Plan, ring: list[int]) -> tuple[Counter, list[list[list[int]]]]:
    """Move positions instead of keys: pairs attended by all, and each rank's buffers."""
    owned = [[p for a, b in intervals for p in range(a, b)] for intervals in plan.ring().owned]
    schedules = [plan.schedule(rank) for rank in ring]
    pairs = sum(
        (count_pairs(one.local, own, own) for one, own in zip(schedules, owned, strict=True)),
        Counter(),
    )
    buffers: list[list[list[int]]] = [[] for _ in ring]
    for index in range(len(schedules[0].stages)):
        stages = [schedule.stages[index] for schedule in schedules]
        sources = [
            own if stage.source is None else mine[stage.source]
            for own, mine, stage in zip(owned, buffers, stages, strict=True)
        ]
        for rank, stage in enumerate(stages):
            arrived = [
                p
                for one in stage.recv
                for p in read(sources[one.peer], message_to(stages[one.peer], rank, like=one))
            ]
            buffers[rank].append(arrived)
            pairs += count_pairs(stage.slices, owned[rank], arrived)
    return pairs, buffers


def message_to(sender: Stage, rank: int, *, like: Transfer) -> Transfer:
    (found,) = [one for one in sender.send if one.peer == rank]
    assert found.rows == like.rows
    return found


def read(source: list[int], message: Transfer) -> list[int]:
    return [p for rows in message.rows for p in source[rows.start : rows.stop]]


def sees(one: Slice, q: int, kv: int) -> bool:
    if one.band:
        return q - one.band.left <= kv <= q + one.band.right
    return kv <= q or not one.causal


def count_pairs(slices: tuple[Slice, ...], own: list[int], buffer: list[int]) -> Counter:
    return Counter(
        (own[one.q_start + q], buffer[one.kv_start + kv])
        for one in slices
        for q in range(one.q_stop - one.q_start)
        for kv in range(one.kv_stop - one.kv_start)
        if sees(one, q, kv)
    )


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_pair_that_the_mask_allows_is_attended_exactly_once(plan: Plan) -> None:
    for ring in rings(plan):
        pairs, _ = run_ring(plan, ring)
        assert pairs == allowed(plan)


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_receive_has_its_send_in_the_same_stage(plan: Plan) -> None:
    for ring in rings(plan):
        schedules = [plan.schedule(rank) for rank in ring]
        for at_once in zip(*(one.stages for one in schedules), strict=True):
            received = {
                (one.peer, rank, one.rows) for rank, s in enumerate(at_once) for one in s.recv
            }
            sent = {(rank, one.peer, one.rows) for rank, s in enumerate(at_once) for one in s.send}
            assert received == sent
            assert len({(stage.post, stage.source) for stage in at_once}) == 1


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_every_row_that_moves_is_attended(plan: Plan) -> None:
    for ring in rings(plan):
        pairs, buffers = run_ring(plan, ring)
        keys = {kv for _, kv in pairs}
        for mine in buffers:
            moved = [p for buffer in mine for p in buffer]
            assert len(moved) == len(set(moved)), "a row came twice"
            assert keys.issuperset(moved)


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_pairs_count_what_is_attended(plan: Plan) -> None:
    whole = sum(plan.pattern.pairs(one) for one in [(0, plan.partition.seq_len)])
    assert whole == allowed(plan).total()
    shared = sum(plan.pairs(rank) for rank in range(plan.partition.cp_size))
    assert whole - plan.partition.cp_size * plan.ulysses <= shared <= whole
    assert plan.ulysses > 1 or shared == whole


@settings(deadline=None)  # another job may hold the core
@given(plans())
def test_what_all_send_is_what_all_receive(plan: Plan) -> None:
    sizes = SIZES | {"heads": 12, "kv_heads": 3}
    costs = [plan.bytes(rank, **sizes) for rank in range(plan.partition.cp_size)]
    for half in ("forward", "backward"):
        sent, received = (
            sum(getattr(one, f"{half}_{way}") for one in costs) for way in ("sent", "received")
        )
        assert sent == received


def test_ring_of_zigzag_8_over_2() -> None:
    plan = make_plan(8, 2, stages=1)
    first, second = plan.schedule(0), plan.schedule(1)
    # Rank 0 holds 0 1 6 7: its late half sees all of 2 3 4 5.
    assert first.stages[0].recv == ((1, ((0, 4),)),)
    assert first.stages[0].send == ((1, ((0, 2),)),)
    assert first.stages[0].slices == (
        Slice(q_start=2, q_stop=4, kv_start=0, kv_stop=4, causal=False),
    )
    # Rank 1 sees of rank 0 only the early half.
    assert second.stages[0].recv == ((0, ((0, 2),)),)
    assert second.stages[0].send == ((0, ((0, 4),)),)
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
    received = [sum(stage.num_rows for stage in plan.schedule(rank).stages) for rank in range(4)]
    assert received == [0, 16, 32, 48]


def test_rows_received_by_zigzag_64_over_4() -> None:
    plan = make_plan(64, 4, stages=3)
    received = [sum(stage.num_rows for stage in plan.schedule(rank).stages) for rank in range(4)]
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


def test_flops_are_four_and_ten_a_pair_head_and_element() -> None:
    plan = make_plan(8, 2, stages=1).bind(**SIZES)
    assert plan.flops(0).forward == 4 * plan.pairs(0) * 4 * 8
    assert plan.flops(0).backward == 10 * plan.pairs(0) * 4 * 8


def test_ulysses_bytes_follow_the_formula() -> None:
    partition = Partition(seq_len=64, cp_size=4, sharding=Sharding.ZIGZAG)
    plan = Plan(partition=partition, mask=Mask.CAUSAL, stages=0, ulysses=4)
    for kv_heads, moved in ((8, 8), (4, 4), (2, 4)):  # two kv heads go to four ranks
        cost = plan.bytes(0, heads=16, kv_heads=kv_heads, head_dim=32, itemsize=2)
        wanted = 3 * 16 * 32 * 2 * (2 * 16 + 2 * moved) // 4
        assert {cost.forward_sent, cost.forward_received} == {wanted}
        assert {cost.backward_sent, cost.backward_received} == {wanted}


def test_hybrid_bytes_are_both_formulas() -> None:
    partition = Partition(seq_len=64, cp_size=4, sharding=Sharding.ZIGZAG)
    plan = Plan(partition=partition, mask=Mask.FULL, stages=1, ulysses=2)
    cost = plan.bytes(0, heads=8, kv_heads=4, head_dim=32, itemsize=2)
    heads = 16 * 32 * 2 * (2 * 8 + 2 * 4) // 2
    ring = 2 * 32 * (4 // 2) * 32 * 2
    assert cost.forward_sent == heads + ring
    assert cost.backward_sent == heads + 2 * ring


def test_gradients_in_fp32_are_the_only_ones_that_grow() -> None:
    half = make_plan(64, 4, mask="full", stages=3).bind(**SIZES)
    wide = half.bind(kv_heads=None, head_dim=None, itemsize=None, dkv_itemsize=4)
    assert wide.bytes(0).forward_sent == half.bytes(0).forward_sent
    assert wide.bytes(0).backward_sent * 2 == half.bytes(0).backward_sent * 3
