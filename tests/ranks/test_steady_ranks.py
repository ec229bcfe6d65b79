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


def test_ranks_that_decide_alone_part_company(ranks: RankPool):
    assert ranks.run(steps_of, world=3, noisy_rank=2, agree=False) == [(6, 0), (6, 0), (9, 0)]
