"""Exponents of known growth, and searches that find the known limit in few tries."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.growth import SUSPICIOUS_EXPONENT, LengthSearch, exponent

LENGTHS = (512, 1024, 2048, 4096)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_is_its_own(power):
    found = exponent((tokens, round(1e6 * tokens**power)) for tokens in LENGTHS)

    assert found == pytest.approx(power, abs=1e-4)


def test_scores_that_outgrow_the_rest_are_suspicious_and_a_fused_kernel_is_not():
    scores = exponent((tokens, 4000 * tokens + 32 * tokens**2) for tokens in LENGTHS)
    fused = exponent((tokens, 4000 * tokens + 100_000) for tokens in LENGTHS)

    assert fused < 1.01 < SUSPICIOUS_EXPONENT < scores


@pytest.mark.parametrize("points", [[], [(512, 10)], [(512, 10), (600, 12)], [(512, 0), (1024, 0)]])
def test_too_few_lengths_tell_no_exponent(points):
    assert exponent(points) is None


def peak_of(tokens, *, base, linear, square):
    return base + linear * tokens + square * tokens**2


def search_to_the_end(search, known, peak):
    tries = 0
    while (tokens := search.next_length(known)) is not None:
        seen = peak(tokens)
        known[tokens] = seen if seen <= search.capacity_bytes else None
        tries += 1
        assert tries < 60
    return search.longest(known), tries


@given(
    base=st.integers(0, 10**7),
    linear=st.integers(1, 20_000),
    square=st.sampled_from([0, 0, 1, 30]),
    capacity=st.integers(1, 10**9),
    start=st.sampled_from([(), (512,), LENGTHS]),
)
def test_the_search_ends_at_the_longest_length_that_fits(base, linear, square, capacity, start):
    search = LengthSearch(capacity_bytes=capacity, granule=64, most=64 * 1024)

    def peak(tokens):
        return peak_of(tokens, base=base, linear=linear, square=square)

    known = {tokens: peak(tokens) if peak(tokens) <= capacity else None for tokens in start}
    found, _ = search_to_the_end(search, known, peak)

    true = max((t for t in range(64, 64 * 1024 + 1, 64) if peak(t) <= capacity), default=None)
    assert found == true


def test_a_straight_line_is_found_in_three_tries():
    search = LengthSearch(capacity_bytes=16_000_000, granule=64, most=1 << 20)

    def peak(tokens):
        return peak_of(tokens, base=2_000_000, linear=5000, square=0)

    known = {tokens: peak(tokens) for tokens in (512, 1024, 2048)}
    found, tries = search_to_the_end(search, known, peak)

    assert found == math.floor(14_000_000 / 5000 / 64) * 64
    assert tries <= 3


def test_where_nothing_fits_the_search_ends_at_one_granule():
    search = LengthSearch(capacity_bytes=10, granule=64, most=1024)

    found, tries = search_to_the_end(search, {512: None}, lambda tokens: tokens)

    assert found is None
    assert tries == 3
