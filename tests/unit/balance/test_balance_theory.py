"""Theory against simulation: the 1/CP law, and the regime in which variance rises first."""

import numpy as np
import pytest

from cptune.balance.asked import Packing
from cptune.balance.distributions import read_distribution
from cptune.balance.histogram import Histogram
from cptune.balance.simulate import Setting, Simulation
from cptune.balance.spread import fit_exponent
from cptune.balance.theory import (
    describe_regime,
    law_variance,
    predict_spread,
    row_moments,
    straggler_factor,
)
from cptune.balance.work import Work

CPS = (1, 4, 16)


def seen(name):
    histogram = Histogram()
    histogram.add(read_distribution(name).table)
    return histogram


def setting(tokens_per_gpu, **asked):
    return Setting(**{"world": 512, "tokens_per_gpu": tokens_per_gpu, "cps": CPS} | asked)


@pytest.mark.parametrize(
    ("name", "tokens_per_gpu"),
    [
        ("prolong(max=8192)", 8192),
        ("wlb-llm(max=2048)", 8192),
        ("wlb-llm", 32768),
        ("lognormal(mean=900, sigma=1.2, max=20000)", 4096),
        ("pareto(min=200, alpha=1.8, max=9000)", 4096),
    ],
)
def test_theory_and_simulation_agree(name, tokens_per_gpu):
    asked = setting(tokens_per_gpu, work=Work(token_keys=900.0))
    run = Simulation(asked, Packing.SEQUENTIAL)
    for block in read_distribution(name).chunks(120 * asked.step_tokens, seed=0):
        run.feed(block)
    for cp in CPS:
        counted, told = run.meters[cp].spread(), predict_spread(seen(name), setting=asked, cp=cp)
        assert told.mean == pytest.approx(counted.mean, rel=0.02)
        assert told.cv == pytest.approx(counted.cv, rel=0.06)
        assert told.slowest_over_mean == pytest.approx(counted.slowest_over_mean, rel=0.12)
        assert told.max_over_min == pytest.approx(counted.max_over_min, rel=0.35)


def test_rows_of_equal_documents_that_fill_them_vary_only_by_where_they_begin():
    lengths = Histogram()
    lengths.add(np.full(10, 64))
    moments = row_moments(lengths, row_tokens=64, work=Work())
    # a row begins anywhere in a document: pieces of k and 64 - k tokens, k uniform
    each = [k * (k + 1) / 2 + (64 - k) * (65 - k) / 2 for k in range(64)]
    assert moments.pairs_mean == pytest.approx(np.mean(each), rel=0.01)
    assert moments.pairs_variance == pytest.approx(np.var(each), rel=0.05)


def test_the_law_is_the_limit_of_long_rows():
    lengths = seen("lognormal(mean=300, sigma=0.7, max=2000)")
    exact = row_moments(lengths, row_tokens=64 * 8192, work=Work()).pairs_variance / 64**2
    assert law_variance(lengths, tokens_per_gpu=8192, cp=64, work=Work()) == pytest.approx(
        exact, rel=0.06
    )


def test_theory_has_exponent_minus_one_for_short_documents():
    lengths, asked = seen("prolong(max=2048)"), setting(8192, world=1 << 16)
    variances = [predict_spread(lengths, setting=asked, cp=cp).variance for cp in (1, 2, 4, 8, 16)]
    assert -1.1 < fit_exponent([1, 2, 4, 8, 16], variances) < -0.9


def test_one_group_has_no_spread_and_no_straggler():
    asked = setting(1024, world=16)
    assert straggler_factor(seen("prolong"), setting=asked, cp=16) == 1.0
    assert straggler_factor(seen("prolong"), setting=asked, cp=1) > 1.0


def test_a_step_of_many_groups_waits_longer():
    few, many = (
        straggler_factor(seen("prolong"), setting=setting(8192, world=world), cp=1)
        for world in (16, 1024)
    )
    assert 1 < few < many


@pytest.mark.parametrize(
    ("name", "tokens_per_gpu", "said"),
    [
        ("prolong(max=2048)", 8192, "variance falls as 1/CP"),
        ("prolong(max=8192)", 8192, "a little slower than 1/CP"),
        ("wlb-llm", 32768, "variance first rises, up to CP=4"),
        ("fixed(tokens=3000)", 2048, "more than the 2,048 of a GPU"),
    ],
)
def test_the_regime_is_told(name, tokens_per_gpu, said):
    assert said in describe_regime(seen(name), setting=setting(tokens_per_gpu))
