"""Kernels timed in real ranks spread as the count of their work says."""

import numpy as np
import pytest

from cptune.balance.batches import RANKS, compare, sample_batches
from cptune.balance.distributions import read_distribution
from cptune.balance.histogram import Histogram
from cptune.balance.measure import time_rank
from cptune.balance.processes import measure
from cptune.balance.simulate import Setting
from cptune.errors import ClusterError


def sampled(name, *, tokens_per_gpu):
    histogram = Histogram()
    histogram.add(read_distribution(name).table)
    setting = Setting(world=512, tokens_per_gpu=tokens_per_gpu, cps=(1, 2, 4, 8))
    return sample_batches(histogram, setting=setting, seed=0)


@pytest.mark.parametrize(
    ("name", "tokens_per_gpu"), [("prolong(max=8192)", 8192), ("wlb-llm", 32768)]
)
def test_measured_and_counted_groups_correlate(ranks, name, tokens_per_gpu):
    batches = sampled(name, tokens_per_gpu=tokens_per_gpu)
    assert list(batches.rows) == [1, 2, 4]
    timed = ranks.run(time_rank, world=RANKS, batches=batches)
    found = compare(batches, timed)
    assert {one.kernel for one in timed} == {"cpu_flash"}
    for one in found:
        assert one.correlation >= 0.95, one
        assert one.measured.cv == pytest.approx(one.counted.cv, rel=0.5)
    spreads = np.array([[one.measured.cv, one.counted.cv] for one in found])
    assert np.corrcoef(spreads.T)[0, 1] >= 0.95


def test_the_command_starts_its_own_ranks_and_ends_them():
    batches = sampled("prolong(max=8192)", tokens_per_gpu=8192)
    short = type(batches)(rows={2: batches.rows[2][:2]}, steps=1, scale=batches.scale)
    timed = measure(short, ranks=2)
    assert [sorted(one.rows_s[2]) for one in timed] == [[0, 1], [0, 1]]


def test_a_rank_that_fails_is_told():
    broken = type(sampled("fixed(tokens=4)", tokens_per_gpu=4))(rows={1: [[0]]}, steps=1, scale=1.0)
    with pytest.raises(ClusterError, match=r"measuring rank 0 failed: .*seq_len is 0"):
        measure(broken, ranks=1)
