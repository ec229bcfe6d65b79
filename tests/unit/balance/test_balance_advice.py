"""What CP and packing gain, in step time."""

import numpy as np
import pytest

from cptune.balance.advice import (
    advise,
    attention_share,
    batches_by_cp,
    dynamic_cp_gain,
    dynamic_cp_straggler,
    keys_per_token,
    read_model,
    step_factor,
)
from cptune.balance.distributions import read_distribution
from cptune.balance.histogram import Histogram
from cptune.balance.simulate import Setting
from cptune.balance.spread import Spread
from cptune.balance.theory import straggler_factor
from cptune.balance.work import Work
from cptune.errors import SpecError

WORK = Work(token_keys=900.0)
SETTING = Setting(world=64, tokens_per_gpu=8192, cps=(1, 2, 4, 8), work=WORK)


def seen(name):
    histogram = Histogram()
    histogram.add(read_distribution(name).table)
    return histogram


def spread(slowest_over_mean):
    return Spread(
        mean=1.0, variance=0.1, cv=0.3, max_over_min=2.0, slowest_over_mean=slowest_over_mean
    )


def test_gains_are_ratios_of_step_times_and_the_smallest_good_cp_is_advised():
    spreads = {
        "sequential": {1: spread(2.0), 2: spread(1.6), 4: spread(1.26), 8: spread(1.25)},
        "quadratic": {1: spread(1.6), 2: spread(1.3), 4: spread(1.05), 8: spread(1.0)},
    }
    said = advise(spreads, histogram=seen("prolong"), setting=SETTING)
    assert (said.cp, said.packing) == (4, "quadratic")
    assert said.cp_gain == pytest.approx(2.0 / 1.26)
    assert said.packing_gain == pytest.approx(2.0 / 1.6)
    assert said.both_gain == pytest.approx(2.0 / 1.05)
    assert "50% of attention time is lost" in said.lines()[0]
    diluted = advise(spreads, histogram=seen("prolong"), setting=SETTING, attention_share=0.5)
    assert diluted.cp_gain == pytest.approx(1.5 / 1.13)
    assert "of the step is lost" in diluted.lines()[0]


def test_attention_weighs_more_in_longer_documents():
    model = read_model("llama3-8b")
    short, long = (attention_share(model, keys_per_token=keys) for keys in (1000, 64_000))
    # 32 layers x 4 x 4096 x 64,000 keys over 2 x 7.5e9 weights and that
    assert long == pytest.approx(33.55e9 / (33.55e9 + 15.0e9), rel=0.01)
    assert 0 < short < 0.05
    with pytest.raises(SpecError, match="no-such-model"):
        read_model("no-such-model")


def test_keys_per_token_are_half_a_document_and_at_most_the_window():
    lengths = seen("fixed(tokens=999)")
    assert keys_per_token(lengths, work=Work()) == 500.0
    assert keys_per_token(lengths, work=Work(window=9)) == pytest.approx(10.0, rel=0.01)


def dynamic(lengths, *, cp, setting=SETTING):
    static = straggler_factor(lengths, setting=setting, cp=cp)
    return dynamic_cp_gain(lengths, setting=setting, cp=cp, static=static)


def test_dynamic_cp_gains_what_static_cp_waits_unless_one_document_is_the_step():
    assert 1.1 < dynamic(seen("prolong(max=8192)"), cp=1) < 2.0
    rare = Histogram()
    rare.add(np.array([8192] + 600 * [100]))
    assert dynamic(rare, cp=1) == pytest.approx(1.0, abs=0.05)
    assert step_factor(2.0, 0.25) == 1.25


def test_dynamic_cp_is_even_where_no_document_is_a_ranks_work_and_that_of_one_where_it_is():
    assert dynamic_cp_straggler(seen("fixed(tokens=64)"), setting=SETTING, cp=1) == 1.0
    one = Setting(world=4, tokens_per_gpu=1024, cps=(2,), work=Work())
    rare = Histogram()
    rare.add(np.array([2048]))  # two of them a step, each over two ranks
    assert dynamic_cp_straggler(rare, setting=one, cp=2) == pytest.approx(1.0)
    assert dynamic_cp_straggler(rare, setting=one, cp=1) == pytest.approx(1.0)
    lone = Histogram()
    lone.add(np.array([2048] + 2048 * [1]))  # as many tokens again, hardly any work
    assert 1.0 < dynamic_cp_straggler(lone, setting=one, cp=2) <= 2.0
    assert dynamic_cp_gain(lone, setting=one, cp=2, static=1.0) == 1.0  # never below
    assert dynamic_cp_gain(rare, setting=one, cp=2, static=3.0, attention_share=0.5) == 2.0


def test_batches_are_counted_by_the_cp_that_their_longest_document_needs():
    shares = batches_by_cp(seen("prolong"), setting=SETTING, cps=(1, 2, 4, 8))
    assert sum(shares.values()) == pytest.approx(1.0)
    short = batches_by_cp(seen("prolong(max=8000)"), setting=SETTING, cps=(1, 2))
    assert short == pytest.approx({1: 1.0, 2: 0.0}, abs=1e-9)
