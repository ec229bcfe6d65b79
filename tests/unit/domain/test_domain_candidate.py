"""Keys that name a run once, one spelling for each run, and axes that bring it back."""

from dataclasses import replace

import pytest
from fakes import candidate
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
    candidate_from_axes,
)
from cptune.domain.layout import ParallelLayout

degree = st.integers(1, 4)
candidates = st.builds(
    Candidate,
    layout=st.builds(
        ParallelLayout,
        tp=degree,
        cp=degree,
        pp=degree,
        vpp=degree,
        dp=degree,
        ulysses=degree,
        ep=degree,
    ),
    sharding=st.sampled_from(ShardingKind),
    strategy=st.sampled_from(Strategy),
    stages=st.integers(0, 3),
    micro_batch=degree,
    recompute=st.sampled_from(Recompute),
    loss=st.sampled_from(LossKind),
    data_parallel=st.sampled_from(DataParallelKind),
    kernel=st.sampled_from(["auto", "flash"]),
)


def test_the_key_of_a_run_never_changes():
    assert candidate(tp=2, cp=4, dp=1).key == (
        "tp2-cp4-pp1-dp1-mb1-zigzag-ring-st3-none-full-ddp-auto"
    )
    assert candidate(tp=1, cp=1, dp=4, micro_batch=2).key == (
        "tp1-cp1-pp1-dp4-mb2-none-full-ddp-auto"
    )
    assert candidate(cp=4, pp=2, vpp=3, ulysses=2, strategy=Strategy.ALL_GATHER).key == (
        "tp1-cp4-pp2-dp1-mb1-vpp3-zigzag-allgather-st3-u2-none-full-ddp-auto"
    )


@given(candidates, candidates)
def test_two_runs_share_a_key_only_when_they_are_one(left, right):
    left, right = left.canonical(), right.canonical()

    assert (left.key == right.key) == (left == right)


@given(candidates)
def test_the_axes_give_the_candidate_back(one):
    assert candidate_from_axes(one.axes()) == one


@given(candidates)
def test_the_canonical_spelling_is_its_own(one):
    assert one.canonical().canonical() == one.canonical()


@given(candidates)
def test_the_canonical_run_keeps_every_degree(one):
    before, after = one.layout, one.canonical().layout

    assert replace(before, vpp=1) == replace(after, vpp=1)
    assert after.vpp == (before.vpp if before.pp > 1 else 1)


def test_without_cp_the_context_axes_say_nothing():
    zigzag = candidate(cp=1, sharding=ShardingKind.ZIGZAG, strategy=Strategy.ALL_GATHER)

    assert zigzag.canonical() == candidate(cp=1).canonical()
    assert zigzag.canonical().sharding is ShardingKind.CONTIGUOUS


@pytest.mark.parametrize(
    ("cp", "strategy", "stages", "wanted"),
    [
        (2, Strategy.ALL_GATHER, 1, Strategy.RING),
        (2, Strategy.RING, 1, Strategy.RING),
        (4, Strategy.RING, 1, Strategy.ALL_GATHER),
        (4, Strategy.RING, 3, Strategy.RING),
        (4, Strategy.HYBRID, 1, Strategy.HYBRID),
    ],
)
def test_one_exchange_has_one_name(cp, strategy, stages, wanted):
    assert candidate(cp=cp, strategy=strategy, stages=stages).canonical().strategy is wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"micro_batch": 0}, "micro_batch is 0; wanted 1 or more"), ({"stages": -1}, "stages is -1")],
)
def test_a_size_below_its_least_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        candidate(cp=2, **changes)


def test_axes_with_an_unknown_word_or_a_hole_are_refused():
    axes = candidate(cp=2).axes()

    with pytest.raises(ValueError, match="spiral"):
        candidate_from_axes({**axes, "sharding": "spiral"})
    with pytest.raises(KeyError, match="stages"):
        candidate_from_axes({name: axes[name] for name in axes if name != "stages"})


def test_a_description_leaves_out_what_says_nothing():
    assert candidate(tp=2, dp=2).describe() == "tp2 cp1 dp2"
    assert candidate(cp=4, pp=2, micro_batch=2).describe() == "tp1 cp4 dp1 pp2 zigzag ring/3 mb2"
