"""Work of every group, step by step, and how far the groups drift apart."""

from dataclasses import astuple
from statistics import fmean, pvariance

import numpy as np
import pytest

from cptune.balance.asked import Packing, Split
from cptune.balance.distributions import read_distribution
from cptune.balance.simulate import Setting, Simulation, parse_cps, sequential_times
from cptune.balance.spread import fit_exponent
from cptune.balance.work import Work, published_token_keys
from cptune.errors import SpecError

H100 = Work(token_keys=published_token_keys())


def pairs(tokens):
    return tokens * (tokens + 1) // 2


def simulated(name, *, tokens_per_gpu, steps, cps=(1, 2, 4, 8, 16, 32), work=H100):
    setting = Setting(world=512, tokens_per_gpu=tokens_per_gpu, cps=cps, work=work)
    run = Simulation(setting, Packing.SEQUENTIAL)
    for block in read_distribution(name).chunks(steps * setting.step_tokens, seed=0):
        run.feed(block)
    return {cp: meter.spread() for cp, meter in run.meters.items()}


def exponent(spreads):
    return fit_exponent(list(spreads), [one.variance for one in spreads.values()])


def test_a_step_worked_out_by_hand():
    setting = Setting(world=4, tokens_per_gpu=4, cps=(1, 2, 4))
    times = sequential_times(np.array([3, 4, 5, 4]), setting=setting)
    # rows of 4: 3+1, 3+1, 4, 4; rows of 8: 3+4+1, 4+4; one row of 16, nothing cut
    assert times[1].tolist() == [[pairs(3) + 1, pairs(3) + 1, pairs(4), pairs(4)]]
    assert times[2].tolist() == [[(pairs(3) + pairs(4) + 1) / 2, pairs(4)]]
    assert times[4].tolist() == [[(pairs(3) + 2 * pairs(4) + pairs(5)) / 4]]


def test_the_spread_is_that_of_each_step_averaged():
    setting = Setting(world=2, tokens_per_gpu=4, cps=(1,))
    run = Simulation(setting, Packing.SEQUENTIAL)
    run.feed(np.array([4, 2, 2, 1, 3, 4]))  # works 10, 6 and 7, 10
    found = run.meters[1].spread()
    assert run.steps == 2
    assert found.mean == fmean([8.0, 8.5])
    assert found.variance == fmean([pvariance([10, 6]), pvariance([7, 10])])
    assert found.cv == fmean([2 / 8, 1.5 / 8.5])
    assert found.max_over_min == fmean([10 / 6, 10 / 7])
    assert found.slowest_over_mean == fmean([10 / 8, 10 / 8.5])


@pytest.mark.parametrize("window", [None, 5])
def test_running_sums_agree_with_pieces_written_down(window):
    stream = np.random.default_rng(3).integers(1, 60, size=900)
    work = Work(window=window, token_keys=1.5)
    setting = Setting(world=8, tokens_per_gpu=7, cps=(1, 2, 8), work=work)
    sums = Simulation(setting, Packing.SEQUENTIAL)
    # one rank a group: the even split and this one are the same, but it goes another way
    single = Setting(world=8, tokens_per_gpu=7, cps=(1,), work=work, split=Split.ZIGZAG)
    pieces = Simulation(single, Packing.SEQUENTIAL)
    for block in np.array_split(stream, 5):
        sums.feed(block)
        pieces.feed(block)
    counted, written = (astuple(run.meters[1].spread()) for run in (sums, pieces))
    assert counted == pytest.approx(written)


def test_blocks_of_the_stream_do_not_matter():
    stream = np.random.default_rng(3).integers(1, 60, size=500)
    setting = Setting(world=4, tokens_per_gpu=16, cps=(1, 4))
    one, many = (Simulation(setting, Packing.SEQUENTIAL) for _ in range(2))
    one.feed(stream)
    for block in np.array_split(stream, 100):
        many.feed(block)
    assert one.steps == many.steps
    assert one.meters[1].spread().cv == pytest.approx(many.meters[1].spread().cv)


def test_quadratic_packing_is_the_most_even_when_documents_are_short():
    setting = Setting(world=16, tokens_per_gpu=4096, cps=(1, 2))
    runs = [Simulation(setting, packing, max_steps=4) for packing in Packing]
    for block in read_distribution("lognormal(mean=700, sigma=1, max=2048)").chunks(10**6, seed=0):
        for run in runs:
            run.feed(block)
    sequential, first_fit, quadratic = (run.meters[2].spread() for run in runs)
    assert [run.steps for run in runs] == [4, 4, 4]
    assert all(run.is_done for run in runs)
    assert quadratic.slowest_over_mean < min(
        sequential.slowest_over_mean, first_fit.slowest_over_mean
    )


def test_a_split_of_the_whole_row_is_never_faster_than_an_even_one():
    for split in (Split.ZIGZAG, Split.CONTIGUOUS, Split.WHOLE):
        setting = Setting(world=8, tokens_per_gpu=512, cps=(4,), split=split)
        run = Simulation(setting, Packing.SEQUENTIAL)
        even = Simulation(Setting(world=8, tokens_per_gpu=512, cps=(4,)), Packing.SEQUENTIAL)
        for block in read_distribution("lognormal(mean=300, sigma=1)").chunks(20_000, seed=0):
            run.feed(block)
            even.feed(block)
        assert run.meters[4].spread().slowest > even.meters[4].spread().slowest
        assert run.meters[4].spread().mean == pytest.approx(even.meters[4].spread().mean)


@pytest.mark.parametrize("name", ["prolong", "wlb-llm", "lognormal(mean=1500, sigma=1)"])
def test_variance_falls_as_one_over_cp_when_documents_are_short(name):
    name = name.replace(")", ", max=2048)") if ")" in name else f"{name}(max=2048)"
    spreads = simulated(name, tokens_per_gpu=8192, steps=150, cps=(1, 2, 4, 8, 16))
    assert -1.1 < exponent(spreads) < -0.9


def test_cutting_weakens_the_law_when_documents_fill_a_gpu():
    spreads = simulated("prolong(max=8192)", tokens_per_gpu=8192, steps=60, cps=(1, 2, 4, 8))
    assert exponent(spreads) == pytest.approx(-0.75, abs=0.1)


@pytest.mark.parametrize(
    ("name", "tokens_per_gpu", "cv", "max_over_min", "rel"),
    [
        (
            "prolong(max=8192)",
            8192,
            (0.28, 0.23, 0.16, 0.12, 0.08, 0.05),
            (3.3, 2.7, 2.1, 1.7, 1.4, 1.2),
            0.15,
        ),
        (
            "wlb-llm(max=8192)",
            8192,
            (0.18, 0.14, 0.10, 0.07, 0.05, 0.04),
            (2.9, 2.1, 1.6, 1.4, 1.2, 1.1),
            0.15,
        ),
        ("wlb-llm", 32768, (0.90, 1.18, 1.21, 0.91, 0.64, 0.45), (7.7, 14, 21, 13, 8.8, 5.8), 0.2),
        ("prolong", 32768, (0.71, 1.0, 1.4, 1.5), (9.5, 16, 28, 21), 0.25),
    ],
)
def test_the_published_spread_comes_out(name, tokens_per_gpu, cv, max_over_min, rel):
    cps = (1, 2, 4, 8, 16, 32)[: len(cv)]
    spreads = simulated(name, tokens_per_gpu=tokens_per_gpu, steps=60, cps=cps)
    assert [one.cv for one in spreads.values()] == pytest.approx(cv, rel=rel)
    assert [one.max_over_min for one in spreads.values()] == pytest.approx(max_over_min, rel=rel)


def test_max_over_min_is_below_two_at_cp_8_when_documents_fit_a_gpu():
    spreads = simulated("prolong(max=8192)", tokens_per_gpu=8192, steps=60, cps=(1, 8))
    assert spreads[1].max_over_min > 2 * 1.5
    assert spreads[8].max_over_min < 2


def test_variance_rises_before_it_falls_when_longer_documents_become_admissible():
    spreads = simulated("wlb-llm", tokens_per_gpu=32768, steps=60)
    by_cp = [one.variance for one in spreads.values()]
    assert by_cp[0] < by_cp[1] < by_cp[2] > by_cp[3] > by_cp[4] > by_cp[5]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"world": 0}, "world is 0"),
        ({"tokens_per_gpu": -1}, "tokens-per-gpu is -1"),
        ({"cps": ()}, "cp is empty"),
        ({"cps": (3,)}, "cp is 3; wanted a divisor of world = 8; nearest is 2"),
        ({"cps": (16,)}, "nearest is 8"),
        ({"cps": (0,)}, "cp is 0"),
    ],
)
def test_a_wrong_setting_is_refused(asked, said):
    with pytest.raises(SpecError, match=said):
        Setting(**{"world": 8, "tokens_per_gpu": 16, "cps": (1, 2)} | asked)


def test_sizes_are_read_from_a_text():
    assert parse_cps("8,1, 2,8") == (1, 2, 8)
    with pytest.raises(SpecError, match="cp is '1,x'"):
        parse_cps("1,x")
