"""A ring holds a few shards at a time, however many ranks there are; the plan says how much."""

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

from cptune.attention import ContextParallel
from cptune.bench.memory import TensorBudget

ROWS_EACH = 64
MOST = 1.25  # from 3 ranks, too few for the most that is ever in flight; all keys grow by 5/3
NEAR = 0.001  # of what was measured: a scale for each message of gradients
NEAR_TRADING = 0.10  # where heads are traded
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 16
NODES = ("a", "a", "b", "b")


def peaks_of(dtype: str = "float32", **arguments) -> dict[str, tuple[int, int]]:
    """Most live tensor bytes beside the inputs: (measured, planned) of forward and backward."""
    world, kind = dist.get_world_size(), getattr(torch, dtype)
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": kind}
    cp = ContextParallel(dist.group.WORLD, seq_len=ROWS_EACH * world, **sizes, **arguments)
    shapes = [(1, cp.local_len, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    cp.attend(*(torch.zeros(shape, dtype=kind) for shape in shapes[:3]))  # ranks compare, once
    with TensorBudget(1 << 40) as memory:
        q, k, v, dout = (torch.zeros(shape, dtype=kind) for shape in shapes)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        before = memory.live_bytes
        with memory.phase("forward"):
            out = cp.attend(*inputs)
        with memory.phase("backward"):
            torch.autograd.grad(out, inputs, dout)
    planned = cp.plan.peak_bytes(dist.get_rank())
    return {
        half: (memory.peak_bytes[half] - before, getattr(planned, half))
        for half in ("forward", "backward")
    }


def growth(ranks: RankPool, **case: str) -> list[float]:
    """Forward and backward peak of the worst of 5 ranks over the worst of 3, at equal rows."""
    few, many = (ranks.run(peaks_of, world=world, **case) for world in (3, 5))
    return [
        max(one[half][0] for one in many) / max(one[half][0] for one in few)
        for half in ("forward", "backward")
    ]


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag"])
def test_peak_of_a_ring_does_not_grow_with_its_ranks(ranks: RankPool, sharding: str) -> None:
    assert max(growth(ranks, strategy="ring", sharding=sharding)) <= MOST


def test_peak_of_an_all_gather_grows_and_is_seen_to(ranks: RankPool) -> None:
    assert min(growth(ranks, strategy="all_gather", sharding="zigzag")) > MOST


CASES = [
    {},
    {"sharding": "contiguous"},
    {"mask": "full"},
    {"strategy": "all_gather"},
    {"strategy": "ulysses"},
    {"strategy": "hybrid", "ulysses": 2},
    {"nodes": NODES},
    {"mask": "document", "docs": (32,) * 8, "sharding": "balanced"},
    {"window": 20},
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_foresees_the_peaks(ranks: RankPool, case: dict, dtype: str) -> None:
    for found in ranks.run(peaks_of, world=4, dtype=dtype, **case):
        for measured, planned in found.values():
            near = NEAR_TRADING if case.get("strategy") in ("ulysses", "hybrid") else NEAR
            assert planned == pytest.approx(measured, rel=near)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_forward_holds_two_stages_the_sums_and_one_result(
    ranks: RankPool, dtype: str, mask: str
) -> None:
    """The table of O(S/P): at equal rows 2, 4 and 8 ranks hold the same, all that is allowed."""
    itemsize = getattr(torch, dtype).itemsize
    stage = 2 * ROWS_EACH * KV_HEADS * HEAD_DIM * itemsize
    result = ROWS_EACH * HEADS * HEAD_DIM
    merging = ROWS_EACH * HEADS * (5 * 4 + 1)  # both log-sum-exps, their sum, two weights, a mask
    worst: dict[int, int] = {}
    for world in (2, 4, 8):
        found = ranks.run(peaks_of, world=world, dtype=dtype, mask=mask)
        assert all(measured == planned for measured, planned in (one["forward"] for one in found))
        worst[world] = max(one["forward"][0] for one in found)
        stages = min(2, world - 1)
        assert worst[world] <= stages * stage + result * (4 + itemsize) + merging
    assert worst[8] == worst[4] == worst[2] + stage or mask == "causal"
