"""The published sweep, replayed: the corrected prediction is near the best long before luck is."""

from statistics import median

import pytest

from bench.published import MEASUREMENTS
from bench.replay_table import read_rows
from cptune.domain.study import SamplerName
from cptune.offline.replay import ReplayAsked, replay
from cptune.offline.table import sift


@pytest.mark.skipif(not MEASUREMENTS.is_dir(), reason=f"no measurements in {MEASUREMENTS}")
def test_the_corrected_prediction_beats_random_draws_on_the_published_sweep():
    found = sift(read_rows())
    assert (len(found.landscapes), found.unreadable) == (14, [])
    assert all("leaves the NVLink island" in line for line in found.illegal)
    names = (SamplerName.RESIDUAL_GP, SamplerName.RANDOM)

    answer = replay(found, ReplayAsked(samplers=names, seeds=2, noise=0.02))

    led, drawn = (
        median(one["regret"]["5"]["mean"] for one in answer["samplers"][name]["workloads"].values())
        for name in names
    )
    assert led < 0.04
    assert led < drawn / 4
    assert answer["overall"]["best_pruned"] == 0
