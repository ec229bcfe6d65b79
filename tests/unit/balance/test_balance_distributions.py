"""Named distributions, and the histogram that holds any number of lengths."""

import numpy as np
import pytest

from cptune.balance.distributions import is_distribution, known_names, read_distribution
from cptune.balance.histogram import LONGEST, Histogram
from cptune.errors import SpecError


def test_lognormal_has_the_mean_and_sigma_asked_for():
    table = read_distribution("lognormal(mean=3000, sigma=0.8)").table
    assert table.mean() == pytest.approx(3000, rel=0.005)
    assert np.log(table).std() == pytest.approx(0.8, rel=0.005)


def test_pareto_has_the_tail_asked_for():
    table = read_distribution("pareto(min=500, alpha=1.5)").table
    assert table.min() == 500
    assert (table > 2000).mean() == pytest.approx(4**-1.5, rel=0.01)


def test_quantiles_and_fixed_lengths_are_met():
    table = read_distribution("quantiles(0=10, 0.5=100, 1=1000)").table
    assert (table.min(), np.median(table), table.max()) == (10, 100, 1000)
    assert set(read_distribution("fixed(tokens=7)").table.tolist()) == {7}


def test_max_cuts_the_longer_ones():
    free, cut = (read_distribution(f"prolong{end}").table for end in ("", "(max=8192)"))
    assert np.array_equal(cut, np.minimum(free, 8192))


@pytest.mark.parametrize(
    ("name", "mean", "median", "p99", "longest", "mu", "sigma"),
    [
        ("prolong", 3052, 1914, 16273, 340149, 7.68, 0.74),
        ("wlb-llm", 3962, 3227, 26070, 124913, 7.80, 1.06),
    ],
)
def test_published_statistics_are_met(name, mean, median, p99, longest, mu, sigma):
    table = read_distribution(name).table
    assert table.mean() == pytest.approx(mean, rel=0.03)
    assert np.quantile(table, [0.5, 0.99]) == pytest.approx([median, p99], rel=0.005)
    assert table.max() == pytest.approx(longest, rel=0.001)
    assert np.log(table).mean() == pytest.approx(mu, abs=0.05)
    assert np.log(table).std() == pytest.approx(sigma, abs=0.05)


def test_a_seed_decides_the_draw():
    one = read_distribution("prolong")
    first, again, other = (
        np.concatenate(list(one.chunks(3_000_000, seed=seed))) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first[:100], other[:100])
    assert first.sum() >= 3_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lognormal(mean=3000)", "wanted mean and sigma"),
        ("lognormal(mean=3000, sigma=0)", "sigma is 0; wanted more than 0"),
        ("lognormal(mean=0.5, sigma=1)", "mean is 0.5; wanted 1 token or more"),
        ("lognormal(mean=nan, sigma=1)", "mean is nan"),
        ("pareto(min=1, alpha=inf)", "alpha is inf"),
        ("lognormal(mean=x, sigma=1)", "'mean=x' is not name=number"),
        ("fixed(8)", "'8' is not name=number"),
        ("prolong(mean=5)", "prolong takes max alone"),
        ("prolong(max=0)", "max is 0"),
        ("quantiles(0=5, 1=3)", "rise from share 0 to share 1"),
        ("quantiles(0=0, 1=3)", "shortest is 0"),
        ("quantiles(a=5, 1=3)", "a share is not a number"),
        ("gamma(k=2)", "wanted a file or prolong, wlb-llm, lognormal"),
    ],
)
def test_a_wrong_distribution_is_refused(text, said):
    with pytest.raises(SpecError, match=said.replace("(", r"\(")):
        read_distribution(text)


def test_files_are_not_taken_for_distributions():
    assert [is_distribution(text) for text in ("prolong", "pareto(x)", "lengths.txt", "a/b")] == [
        True,
        True,
        False,
        False,
    ]
    assert "quantiles(0=.., 0.5=.., 1=..)" in known_names()


def test_a_histogram_keeps_what_it_was_given():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200_000, size=50_000)
    histogram = Histogram()
    for block in np.array_split(lengths, 7):
        histogram.add(block)
    histogram.add(np.array([LONGEST]))
    histogram.add(np.array([], dtype=np.int64))
    assert (histogram.count, histogram.max_tokens) == (50_001, LONGEST)
    assert histogram.total_tokens == lengths.sum() + LONGEST
    points, shares = histogram.points()
    assert shares.sum() == pytest.approx(1.0)
    assert (points[:-1] ** 2 * shares[:-1]).sum() == pytest.approx(
        (lengths.astype(float) ** 2).mean(), rel=1e-4
    )
    assert histogram.quantile(0.5) == pytest.approx(np.median(lengths), rel=0.005)


def test_short_lengths_are_exact_and_a_draw_stays_among_them():
    histogram = Histogram()
    histogram.add(np.array([3, 3, 9, 4000]))
    drawn = histogram.draw(1000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {3, 9, 4000}
    assert histogram.up_to(9).count == 3
    assert histogram.up_to(1).count == 2  # the shortest are always kept
