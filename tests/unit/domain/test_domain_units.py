"""Byte counts in words and in one unit for many."""

import pytest

from cptune.domain.units import bytes_text, common_unit, in_unit

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("counts", "unit"),
    [((3 * GIB, 90 * GIB), "GiB"), ((3 * GIB, 900 * MIB), "MiB"), ((7,), "B"), ((0, GIB), "GiB")],
)
def test_one_unit_shows_the_least_of_many(counts, unit):
    assert common_unit(counts)[1] == unit


def test_nothing_is_counted_in_bytes():
    assert common_unit(()) == common_unit((0,)) == (1, "B")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0"), (GIB, "1.0"), (GIB // 10 + 1, "0.1"), (GIB // 100, "0.01"), (1e3, "9.3e-07")],
)
def test_what_is_there_does_not_read_as_nothing(count, text):
    assert in_unit(count, GIB) == text


def test_a_count_reads_in_its_own_unit():
    assert bytes_text(1536) == "1.50 KiB"
