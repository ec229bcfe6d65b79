"""When a trial was timed for long enough, and how sure its median is."""

from math import comb
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.timing import StopRule, ci_share, is_noisy, median_interval

RULE = StopRule(warmup_steps=2, steps=5, max_steps=12, ci_share=0.03, timed_s=100.0)


@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15))]
)
def test_the_interval_lies_between_the_order_statistics_of_the_tables(count, ranks):
    # David and Nagaraja, Order Statistics, section 7.1: 95% and no less.
    seen = median_interval([float(value) for value in range(count, 0, -1)])

    assert seen == ranks


@pytest.mark.parametrize("count", range(6))
def test_too_few_steps_have_no_interval_and_are_noisy(count):
    assert median_interval([1.0] * count) is None
    assert ci_share([1.0] * count) is None
    assert is_noisy([1.0] * count, wanted=0.5)


@given(st.integers(6, 60))
def test_the_interval_is_the_narrowest_that_holds_95_percent(count):
    low, high = median_interval([float(value) for value in range(1, count + 1)])

    def missed(rank):
        return 2 * sum(comb(count, index) for index in range(rank)) / 2**count

    assert low + high == count + 1
    assert missed(int(low)) <= 0.05
    assert int(low) == count // 2 or missed(int(low) + 1) > 0.05


def test_the_interval_holds_the_median_of_a_skewed_distribution_95_times_in_100():
    draw = Random(1)
    held = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(12)])
        held += low <= 0.693147 <= high
    assert held / 2000 > 0.94


def test_steady_steps_end_as_soon_as_the_interval_is_known_and_narrow():
    assert not RULE.is_done([1.0] * 5)
    assert RULE.is_done([1.0] * 6)


def test_noisy_steps_go_on_to_the_cap_of_steps():
    noisy = [1.0, 1.5] * 6
    assert [RULE.is_done(noisy[:count]) for count in (6, 11, 12)] == [False, False, True]


def test_noisy_steps_end_at_the_cap_of_seconds_but_never_below_the_steps_asked_for():
    slow = [30.0, 60.0] * 6
    assert [RULE.is_done(slow[:count]) for count in (3, 4, 5)] == [False, False, True]


def test_without_room_above_the_steps_asked_for_they_are_all_there_are():
    fixed = StopRule(warmup_steps=1, steps=2, max_steps=2, ci_share=0.03, timed_s=100.0)
    assert not fixed.is_done([1.0])
    assert fixed.is_done([1.0, 2.0])


def test_warm_up_goes_on_while_steps_become_faster_and_has_an_end():
    assert not RULE.is_warm([])
    assert not RULE.is_warm([3.0])
    assert not RULE.is_warm([3.0, 2.0])
    assert RULE.is_warm([3.0, 2.0, 1.9])
    assert RULE.is_warm([3.0, 3.5])
    assert not RULE.is_warm([32.0, 16.0, 8.0, 4.0, 2.0])
    assert RULE.is_warm([32.0, 16.0, 8.0, 4.0, 2.0, 1.0])
