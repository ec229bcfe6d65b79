"""All ranks stop at the same step, and it is the slowest rank's seconds that decide."""

from dataclasses import dataclass

import torch.distributed as dist
from rank_pool import RankPool

from cptune.bench import steady
from cptune.domain.timing import StopRule


@dataclass(frozen=True)
class Ran:
    seconds: float


def steps_of(*, noisy_rank, agree=True):
    """How many steps each rank timed; one rank's steps vary by half, the others' not at all."""
    rule = StopRule(warmup_steps=2, steps=3, max_steps=9, ci_share=0.03, timed_s=100.0)
    started = []

    def run(index):
        return Ran(1.0 + 0.5 * (index % 2) * (dist.get_rank() == noisy_rank))

    if not agree:  # the mutant: each rank decides on its own seconds
        counted = []
        while not rule.is_done(counted):
            counted.append(run(len(counted)).seconds)
        dist.barrier()
        return len(counted), 0
    seen = steady.run_steadily(run, rule=rule, start_timing=lambda: started.append(1))
    return len(seen.timed), len(started)


def test_steady_ranks_stop_as_soon_as_the_interval_is_known(ranks: RankPool):
    assert ranks.run(steps_of, world=3, noisy_rank=None) == [(6, 1)] * 3


def test_one_noisy_rank_keeps_all_ranks_going_to_the_cap(ranks: RankPool):
    assert ranks.run(steps_of, world=3, noisy_rank=2) == [(9, 1)] * 3


def traced_steps(*, warmup_steps):
    """Which steps are timed, and which are written down."""
    rule = StopRule(warmup_steps=warmup_steps, steps=2, max_steps=2, ci_share=0.03, timed_s=100.0)
    ran, traced = [], []

    def run(index):
        ran.append(index)
        return Ran(1.0)

    def trace(index):
        traced.append(index)
        return Ran(1.2 if index == 1 else 1.0)  # the second is not warm yet

    steady.run_steadily(run, rule=rule, start_timing=ran.clear, trace=trace)
    return ran, traced


def test_the_last_of_warm_up_is_written_down_and_none_that_is_cold_or_timed(ranks: RankPool):
    assert ranks.run(traced_steps, world=2, warmup_steps=1) == [([2, 3], [1])] * 2
    assert ranks.run(traced_steps, world=2, warmup_steps=3) == [([3, 4], [2])] * 2


def test_ranks_that_decide_alone_part_company(ranks: RankPool):
    assert ranks.run(steps_of, world=3, noisy_rank=2, agree=False) == [(6, 0), (6, 0), (9, 0)]
