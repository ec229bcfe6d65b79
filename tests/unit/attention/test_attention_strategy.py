"""Strategies by name: how many ranks trade heads, and how many stages the ring inside has."""

import pytest

from cptune.attention import Strategy
from cptune.attention.strategy import count_stages, count_ulysses


def test_strategies_name_numbers_of_stages() -> None:
    assert count_stages(Strategy.RING, cp_size=4, stages=None) == 3
    assert count_stages(Strategy.RING, cp_size=4, stages=2) == 2
    assert count_stages(Strategy.ALL_GATHER, cp_size=4, stages=None) == 1
    assert count_stages(Strategy.ALL_GATHER, cp_size=4, stages=1) == 1
    assert {count_stages(one, cp_size=1, stages=None) for one in Strategy} == {0}


def test_stages_that_contradict_the_strategy_are_refused() -> None:
    with pytest.raises(ValueError, match="stages is 2, wanted 1 for strategy all_gather"):
        count_stages(Strategy.ALL_GATHER, cp_size=4, stages=2)
    with pytest.raises(ValueError, match="stages is 1, wanted None: one rank"):
        count_stages(Strategy.RING, cp_size=1, stages=1)


def test_ulysses_takes_all_ranks_and_hybrid_what_is_asked() -> None:
    degrees = [
        count_ulysses(strategy, cp_size=6, ulysses=asked)
        for strategy, asked in ((Strategy.RING, 1), (Strategy.ULYSSES, 1), (Strategy.HYBRID, 3))
    ]
    assert degrees == [1, 6, 3]


@pytest.mark.parametrize(
    ("strategy", "ulysses", "message"),
    [
        (Strategy.RING, 2, "ulysses is 2, wanted 1 for strategy ring; nearest is 1"),
        (Strategy.ULYSSES, 4, "ulysses is 4, wanted 6 or 1 .* nearest is 6"),
        (Strategy.HYBRID, 5, "ulysses is 5, wanted a divisor of the 6 ranks; nearest is 6"),
        (Strategy.HYBRID, 0, "ulysses is 0, wanted a divisor of the 6 ranks; nearest is 1"),
    ],
)
def test_degrees_that_contradict_are_refused(
    strategy: Strategy, ulysses: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        count_ulysses(strategy, cp_size=6, ulysses=ulysses)
