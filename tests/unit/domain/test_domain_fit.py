"""A band and its bounds in one unit, so that a reader can compare them."""

import pytest

from cptune.domain.fit import Fit, beyond_text

MIB, GIB = 1 << 20, 1 << 30


def fit(**changes):
    fields = {"low_bytes": 7.5 * MIB, "likely_bytes": 15 * MIB, "high_bytes": 40 * MIB}
    fields |= {"capacity_bytes": 41 * MIB, "inside_bytes": 38 * MIB}
    return Fit(**(fields | changes))


def test_all_five_are_in_one_unit():
    said = "low 7.50, likely 15.00, high 40.00 MiB of 41.00 a device, 38.00 inside the margin"
    assert str(fit()) == said
    assert fit().band == said.partition(" of ")[0]


def test_the_least_of_the_five_decides_the_unit():
    device = {"capacity_bytes": 80 * GIB, "inside_bytes": 70 * GIB}
    assert "high 40.00 MiB of 81920.00 a device" in str(fit(**device))


def test_an_unknown_capacity_is_said():
    assert str(fit(capacity_bytes=0, inside_bytes=0)).endswith(
        "MiB of a device of unknown capacity"
    )


@pytest.mark.parametrize(
    ("reserve", "end"), [(0, "margin"), (GIB, "margin with 1.00 GiB outside the allocator")]
)
def test_what_is_outside_the_allocator_counts(reserve, end):
    assert beyond_text(2 * GIB, reserve) == f"likely 2.00 GiB beyond the {end}"
