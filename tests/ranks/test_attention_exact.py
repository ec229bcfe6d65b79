"""Sharded attention equals unsharded attention in fp64, whatever the cut and the schedule."""

import pytest
import torch
import torch.distributed as dist
from attention_cases import (
    HEAD_DIM,
    Layout,
    Outcome,
    Shape,
    View,
    attend_sharded,
    make_inputs,
    reference,
    run_case,
    run_cases,
)
from rank_pool import RankPool

from cptune.attention import ContextParallel
from cptune.attention.wire import AllOf

TOLERANCE = 1e-12
SHAPES = [Shape(batch, heads=4, kv_heads=kv) for batch in (1, 2) for kv in (4, 1)]
HEADS = [
    Shape(1, heads=8, kv_heads=8),
    Shape(2, heads=8, kv_heads=2),
    Shape(1, heads=8, kv_heads=1),
]
SITES = {2: "ab", 3: "aab", 4: "aabb", 5: "abbab"}
MASKS = ("full", "causal", "document", "window", "window and document")
SHARDINGS = ("contiguous", "zigzag", "balanced")


def lengths(world: int) -> tuple[int, ...]:
    """A rank without a token; below 2P; prime; one that 2P divides."""
    return world - 1, 2 * world - 1, 23, 6 * world


def documents(seq_len: int) -> tuple[int, ...]:
    """Empty ones at the start, between and at the end, lone tokens, and some longer ones."""
    docs, left = [0], seq_len
    for length in (1, 2, 0, 1, 9, 1, 5):
        docs.append(min(length, left))
        left -= docs[-1]
    return (*docs, left, 0)


def arguments_of(mask: str, seq_len: int) -> dict[str, object]:
    found: dict[str, object] = {"mask": mask}
    if "document" in mask:
        found |= {"mask": "document", "docs": documents(seq_len)}
    elif mask == "window":
        found |= {"mask": "causal"}
    if "window" in mask:
        found["window"] = (0, 1, 3, 7)[seq_len % 4]
    return found


def strategies(world: int) -> list[dict[str, object]]:
    nodes = tuple(SITES[world])
    return [
        {"strategy": "ring"},
        {"strategy": "ring", "stages": max(1, world // 2)},
        {"strategy": "all_gather"},
        {"strategy": "ulysses"},
        {"strategy": "hybrid", "ulysses": 2 if world == 4 else 1},
        {"strategy": "ring", "nodes": nodes},
        {"strategy": "all_gather", "nodes": nodes},
        *([{"strategy": "hybrid", "ulysses": 2, "nodes": nodes, "stages": 1}] * (world == 4)),
    ]


def make_layouts(world: int, *, sharding: str, mask: str) -> list[Layout]:
    return [
        Layout(
            seq_len,
            sharding,
            kernel=("cpu_flash", "math")[(seq_len + index) % 2],
            **arguments_of(mask, seq_len),
            **strategy,
        )
        for seq_len in lengths(world)
        for index, strategy in enumerate(strategies(world))
    ]


def test_the_matrix_has_at_least_1500_cases() -> None:
    counted = [
        len(make_layouts(world, sharding=sharding, mask=mask)) * len(HEADS)
        for world in SITES
        for sharding in SHARDINGS
        for mask in MASKS
    ]
    assert sum(counted) >= 1500


def assert_exact(per_rank: list[list[Outcome]]) -> None:
    for outcomes in per_rank:
        assert max(one.error for one in outcomes) <= TOLERANCE
        assert max(one.padding for one in outcomes) == 0.0
        assert [one.moved for one in outcomes] == [one.planned for one in outcomes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("world", SITES)
def test_outputs_and_gradients_equal_unsharded_and_bytes_equal_the_plan(
    ranks: RankPool, world: int, sharding: str, mask: str
) -> None:
    layouts = make_layouts(world, sharding=sharding, mask=mask)
    assert_exact(ranks.run(run_cases, world=world, layouts=layouts, shapes=HEADS, timeout_s=110))


def test_heads_that_no_number_divides_are_traded_too(ranks: RankPool) -> None:
    shapes = [Shape(1, heads, kv) for heads, kv in ((6, 2), (6, 3), (8, 2), (5, 5), (9, 3))]
    layouts = [Layout(29, "zigzag", "causal", strategy="ulysses")]
    for world in (3, 4, 5):
        assert_exact(ranks.run(run_cases, world=world, layouts=layouts, shapes=shapes))


def test_the_named_strategies_are_exact(ranks: RankPool) -> None:
    layouts = [Layout(29, "zigzag", "causal", strategy=name) for name in ("ring", "all_gather")]
    assert_exact(ranks.run(run_cases, world=3, layouts=layouts, shapes=SHAPES))


def test_exchanges_in_many_small_batches_are_exact(ranks: RankPool) -> None:
    layouts = [Layout(29, "zigzag", "causal", **strategy) for strategy in strategies(5)]
    cases = {"layouts": layouts, "shapes": [Shape(2, heads=5, kv_heads=5)]}
    assert_exact(ranks.run(run_cases, world=5, most=(1, 1), **cases))


def run_cases_coalesced(**cases) -> list[Outcome]:
    """On wires whose backend makes one work of each batch, as NCCL does."""
    post = dist.batch_isend_irecv
    dist.batch_isend_irecv = lambda ops: [AllOf(post(ops))]
    try:
        return run_cases(**cases)
    finally:
        dist.batch_isend_irecv = post


@pytest.mark.parametrize("most", [None, (1, 1)])
def test_a_backend_that_makes_one_work_of_a_batch_is_waited_for(ranks: RankPool, most) -> None:
    layouts = [Layout(29, "contiguous", "causal", **strategy) for strategy in strategies(4)]
    cases = {"layouts": layouts, "shapes": [Shape(1, heads=4, kv_heads=2)], "most": most}
    assert_exact(ranks.run(run_cases_coalesced, world=4, **cases))


def one_rank_group() -> tuple[float, dict[str, int]]:
    cp = ContextParallel(dist.group.WORLD, seq_len=11)
    outcome = run_case(cp, view=View("causal"), shape=SHAPES[1])
    return max(outcome.error, outcome.padding), outcome.moved


def test_a_group_of_one_is_plain_attention_and_moves_nothing(ranks: RankPool) -> None:
    ((error, moved),) = ranks.run(one_rank_group, world=1)
    assert error <= TOLERANCE
    assert set(moved.values()) == {0}


def subgroup_errors(groups: list[list[int]]) -> float:
    made = [dist.new_group(members, sort_ranks=False) for members in groups]
    mine = [
        group for group, members in zip(made, groups, strict=True) if dist.get_rank() in members
    ]
    if not mine:
        return 0.0
    # Only members make it: no rank outside may be needed.
    cp = ContextParallel(mine[0], seq_len=23)
    inputs = make_inputs(23, SHAPES[1], torch.float64)
    found, at = attend_sharded(cp, inputs), cp.positions[cp.valid]
    pairs = zip(found, reference(inputs, View("causal")), strict=True)
    return max((x[:, cp.valid] - y[:, at]).abs().max().item() for x, y in pairs)


@pytest.mark.parametrize("groups", [[[0, 2], [1, 3]], [[1, 2, 3]], [[3, 1, 2]], [[2, 0, 3, 1]]])
def test_subgroups_of_the_world_work_side_by_side(ranks: RankPool, groups: list[list[int]]) -> None:
    assert max(ranks.run(subgroup_errors, world=4, groups=groups)) <= TOLERANCE


def two_layers() -> float:
    cp = ContextParallel(dist.group.WORLD, seq_len=31)
    q, k, v, dout = make_inputs(31, Shape(1, heads=4, kv_heads=4), torch.float64)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    parts = [cp.shard(x, dim=1).requires_grad_() for x in (q, k, v)]
    alone = ContextParallel(None, seq_len=31)
    for one, leaves, gradient in ((alone, whole, dout), (cp, parts, cp.shard(dout, dim=1))):
        hidden = one.attend(*leaves)
        one.attend(hidden, leaves[1], hidden).backward(gradient)
    at = cp.positions[cp.valid]
    pairs = [(x.grad, y.grad) for x, y in zip(parts, whole, strict=True)]
    return max((x[:, cp.valid] - y[:, at]).abs().max().item() for x, y in pairs)


def test_layers_on_top_of_each_other_do_not_mix_their_messages(ranks: RankPool) -> None:
    assert max(ranks.run(two_layers, world=4)) <= TOLERANCE


def strided_error() -> float:
    """Keys with their heads first, values as columns of a wider projection, two sequences."""
    cp = ContextParallel(dist.group.WORLD, seq_len=31)
    inputs = make_inputs(31, Shape(2, heads=4, kv_heads=2), torch.float64)
    q, k, v, dout = (cp.shard(x, dim=1) for x in inputs)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    v = torch.cat([v, v.new_full(v.shape, torch.nan)], dim=-1)[..., :HEAD_DIM]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = cp.attend(*leaves)
    found = [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    at = cp.positions[cp.valid]
    pairs = zip(found, reference(inputs, View("causal")), strict=True)
    return max((x[:, cp.valid] - y[:, at]).abs().max().item() for x, y in pairs)


def test_rows_that_are_not_dense_are_sent_right(ranks: RankPool) -> None:
    assert max(ranks.run(strided_error, world=3)) <= TOLERANCE


def relative_errors(dtype: str, seq_len: int) -> float:
    shape = Shape(1, heads=4, kv_heads=2)
    inputs = make_inputs(seq_len, shape, getattr(torch, dtype))
    cp = ContextParallel(dist.group.WORLD, seq_len=seq_len, mask="full")
    found = [cp.unshard(x, dim=1).double() for x in attend_sharded(cp, inputs)]
    wanted = reference([x.double() for x in inputs], View("full"))
    return max(((x - y).norm() / y.norm()).item() for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("bfloat16", 1e-2)])
def test_lower_precision_stays_near_fp64(ranks: RankPool, dtype: str, tolerance: float) -> None:
    assert max(ranks.run(relative_errors, world=4, dtype=dtype, seq_len=257)) <= tolerance


def test_bf16_error_does_not_grow_with_the_ranks(ranks: RankPool) -> None:
    alone, apart = (
        max(ranks.run(relative_errors, world=world, dtype="bfloat16", seq_len=257))
        for world in (1, 4)
    )
    assert apart <= 1.5 * alone


def bytes_of_bf16() -> tuple[int, int]:
    cp = ContextParallel(dist.group.WORLD, seq_len=64, stages=1)
    attend_sharded(cp, make_inputs(64, Shape(1, heads=4, kv_heads=2), torch.bfloat16))
    planned = cp.plan.bytes(dist.get_rank())
    assert planned == cp.plan.bytes(dist.get_rank(), kv_heads=2, head_dim=HEAD_DIM, itemsize=2)
    return cp.traffic.backward_sent_bytes, planned.backward_sent


def test_gradients_travel_as_wide_as_the_inputs(ranks: RankPool) -> None:
    for moved, planned in ranks.run(bytes_of_bf16, world=3):
        assert moved == planned > 0
