"""A ring holds a few shards at a time, however many ranks there are."""

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

from cptune.attention import ContextParallel
from cptune.bench.memory import TensorBudget

ROWS_EACH = 64
MOST = 1.25  # from 3 ranks, too few for the most that is ever in flight; all keys grow by 5/3


def peaks_of(strategy: str, sharding: str) -> tuple[int, int]:
    """Live tensor bytes of one forward and backward, inputs included."""
    cp = ContextParallel(
        dist.group.WORLD,
        seq_len=ROWS_EACH * dist.get_world_size(),
        strategy=strategy,
        sharding=sharding,
    )
    with TensorBudget(1 << 40) as memory:
        q, k, v = (torch.randn(1, ROWS_EACH, 2, 16, requires_grad=True) for _ in range(3))
        with memory.phase("forward"):
            out = cp.attend(q, k, v)
        with memory.phase("backward"):
            out.sum().backward()
    return memory.peak_bytes["forward"], memory.peak_bytes["backward"]


def growth(ranks: RankPool, **case: str) -> list[float]:
    """Forward and backward peak of the worst of 5 ranks over the worst of 3, at equal rows."""
    few, many = (ranks.run(peaks_of, world=world, **case) for world in (3, 5))
    halves = zip(zip(*few, strict=True), zip(*many, strict=True), strict=True)
    return [max(after) / max(before) for before, after in halves]


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag"])
def test_peak_of_a_ring_does_not_grow_with_its_ranks(ranks: RankPool, sharding: str) -> None:
    assert max(growth(ranks, strategy="ring", sharding=sharding)) <= MOST


def test_peak_of_an_all_gather_grows_and_is_seen_to(ranks: RankPool) -> None:
    assert min(growth(ranks, strategy="all_gather", sharding="zigzag")) > MOST
