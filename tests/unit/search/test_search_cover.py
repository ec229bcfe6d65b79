"""A few candidates have every two axis values that go together."""

from itertools import combinations

from fakes import model, setting, workload

from cptune.domain.study import Axes
from cptune.search.cover import cover_pairs
from cptune.search.space import build_space, explicit

SPACE = build_space(
    explicit(Axes(), world_size=8, global_batch_seqs=4),
    setting(8, model=model("tiny"), workload=workload(seq_len=64)),
)


def pairs_of(candidates):
    return {pair for one in candidates for pair in combinations(one.axes().items(), 2)}


def test_few_of_many_have_every_pair():
    cover = cover_pairs(SPACE.candidates, most=1000)
    assert pairs_of(cover.candidates) == pairs_of(SPACE.candidates)
    assert cover.covered == cover.pairs == len(pairs_of(SPACE.candidates))
    assert len(cover.candidates) < len(SPACE.candidates)


def test_what_a_limit_leaves_out_is_counted_and_the_first_choice_adds_most():
    cover = cover_pairs(SPACE.candidates, most=2)
    assert len(cover.candidates) == 2
    assert cover.covered == len(pairs_of(cover.candidates)) < cover.pairs


def test_the_same_every_time_and_nothing_of_nothing():
    assert cover_pairs(SPACE.candidates, most=5) == cover_pairs(SPACE.candidates, most=5)
    assert cover_pairs([], most=5).candidates == ()
