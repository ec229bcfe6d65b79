"""The legal set of small worlds, exactly; what is left out, and by which rule."""

from dataclasses import replace

import pytest
from fakes import STAMP, candidate, setting, space_of, sweep_spec, trial_of, workload
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.domain.candidate import ShardingKind, Strategy
from cptune.domain.rules import why_infeasible
from cptune.domain.stack import PipelineSplit, Stack, StackSpec, TensorInputs
from cptune.domain.study import Axes, Baseline
from cptune.domain.workload import divisors
from cptune.errors import SpecError
from cptune.search.prepare import prepare, refuse_other_batch, resolve
from cptune.search.space import build_space, choose_baseline, explicit
from topology.nouns import Gpu, Node, Topology

TAIL = "none-full-ddp-auto"
NARROW = Axes(pp=(1,), micro_batch=(1,))


def keys(space):
    return [one.key.removesuffix(f"-{TAIL}") for one in space.candidates]


def node(name="node0", *, cpus=None, gpus=0):
    return Node(name=name, cpus=cpus, gpus=tuple(Gpu(index=index) for index in range(gpus)))


def test_the_legal_set_of_two_ranks():
    assert keys(build_space(NARROW, setting(2))) == [
        "tp1-cp1-pp1-dp2-mb1",
        "tp2-cp1-pp1-dp1-mb1",
        "tp1-cp2-pp1-dp1-mb1-zigzag-ring-st1",
    ]


def test_the_legal_set_of_four_ranks_with_every_exchange():
    axes = Axes(
        pp=(1,),
        micro_batch=(1,),
        stages=(1, 2, 3),
        sharding=(ShardingKind.CONTIGUOUS, ShardingKind.ZIGZAG),
    )

    assert keys(build_space(axes, setting(4))) == [
        "tp1-cp1-pp1-dp4-mb1",
        "tp2-cp1-pp1-dp2-mb1",
        "tp4-cp1-pp1-dp1-mb1",
        "tp1-cp2-pp1-dp2-mb1-zigzag-ring-st1",
        "tp1-cp2-pp1-dp2-mb1-contiguous-ring-st1",
        "tp2-cp2-pp1-dp1-mb1-zigzag-ring-st1",
        "tp2-cp2-pp1-dp1-mb1-contiguous-ring-st1",
        "tp1-cp4-pp1-dp1-mb1-zigzag-ring-st3",
        "tp1-cp4-pp1-dp1-mb1-zigzag-ring-st2",
        "tp1-cp4-pp1-dp1-mb1-zigzag-allgather-st1",
        "tp1-cp4-pp1-dp1-mb1-contiguous-ring-st3",
        "tp1-cp4-pp1-dp1-mb1-contiguous-ring-st2",
        "tp1-cp4-pp1-dp1-mb1-contiguous-allgather-st1",
    ]


def test_axes_that_name_one_run_twice_give_it_once():
    axes = Axes(tp=(1, 1), cp=(2,), pp=(1,), micro_batch=(1, 1), stages=(1, 1))

    assert keys(build_space(axes, setting(2))) == ["tp1-cp2-pp1-dp1-mb1-zigzag-ring-st1"]


def test_what_is_left_out_is_counted_by_rule_and_told_once_each():
    axes = Axes(tp=(1, 3), cp=(1,), pp=(1,), micro_batch=(1, 3))

    space = build_space(axes, setting(4))

    assert keys(space) == ["tp1-cp1-pp1-dp4-mb1"]
    assert dict(space.excluded) == {
        "global-batch": 2,
        "world-size": 2,
        "heads": 2,
        "kv-heads": 2,
        "ffn": 2,
        "vocab": 2,
    }
    assert len(space.reasons) == 3


def test_a_degree_without_a_legal_layout_keeps_its_nearest_reason():
    space = build_space(
        Axes(tp=(1,), pp=(1,), micro_batch=(1,)), setting(4, workload=workload(seq_len=3))
    )

    assert space.cps == [1]
    assert dict(space.illegal_cps) == {
        4: "tp1 cp4 dp1 contiguous ring/3: 3 tokens cannot fill the 4 chunks of contiguous over "
        "cp 4, wanted a sequence of 4 or more"
    }


def test_a_degree_that_only_the_axes_leave_out_is_not_called_illegal():
    # Contiguous sharding would fit, but only zigzag is searched.
    space = build_space(
        Axes(tp=(1,), pp=(1,), micro_batch=(1,)), setting(4, workload=workload(seq_len=6))
    )

    assert space.cps == [1, 2]
    assert dict(space.illegal_cps) == {}


def test_layouts_that_only_the_backend_refuses_are_counted_and_not_called_illegal():
    space = build_space(Axes(tp=(1,), cp=(1, 2), pp=(1, 2), micro_batch=(4,)), setting(2))

    assert dict(space.untriable) == {1: 1}
    assert dict(space.illegal_cps) == {}


def test_nothing_legal_says_the_rules_and_the_nearest_layout():
    with pytest.raises(SpecError) as caught:
        build_space(Axes(tp=(3,), cp=(1,), pp=(1,), micro_batch=(1, 3)), setting(3))

    assert str(caught.value) == (
        "no layout of 3 ranks is legal: 2 combinations of the axes break rules (heads x2, "
        "kv-heads x2, ffn x2, vocab x2, global-batch x1)"
    )
    assert caught.value.hint.startswith("the nearest one, tp3 cp1 dp1: 8 query heads do not")


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7, 8, 12, 13])
def test_every_legal_candidate_keeps_every_rule_and_is_its_own_spelling(world):
    given = setting(world, workload=workload(global_batch_seqs=world))

    space = build_space(Axes(), given)

    assert len({one.key for one in space.candidates}) == len(space.candidates)
    for one in space.candidates:
        assert why_infeasible(one, given) == ()
        assert one == one.canonical()
        assert one.layout.world_size == world


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 24), st.integers(1, 16), st.integers(1, 40))
def test_any_world_has_a_legal_set_or_says_why_not(world, batch, seq_len):
    given = setting(world, workload=workload(global_batch_seqs=batch, seq_len=seq_len))

    space, refusal = None, None
    try:
        space = build_space(Axes(), given)
    except SpecError as exc:
        refusal = exc

    if space is None:
        assert f"no layout of {world} ranks is legal" in str(refusal)
        assert refusal.hint
    else:
        assert set(space.cps) <= set(divisors(world))
        assert not set(space.cps) & set(space.illegal_cps)


def test_one_rank_has_one_layout():
    assert keys(build_space(NARROW, setting(1))) == ["tp1-cp1-pp1-dp1-mb1"]


def test_a_sequence_shorter_than_cp_is_left_out():
    space = build_space(NARROW, setting(4, workload=workload(seq_len=3)))

    assert space.cps == [1]
    assert sorted(space.illegal_cps) == [4]


def test_empty_lists_are_everything():
    full = explicit(Axes(), world_size=6, global_batch_seqs=12)

    assert full.tp == full.cp == full.pp == (1, 2, 3, 6)
    assert full.micro_batch == (1, 2, 4)
    assert full.vpp == (1,)


def test_words_that_are_left_empty_are_all_words():
    axes = Axes(vpp=(), sharding=(), strategy=(), recompute=(), loss=(), data_parallel=())

    full = explicit(axes, world_size=2, global_batch_seqs=1)

    assert full.sharding == tuple(ShardingKind)
    assert full.strategy == tuple(Strategy)
    assert full.vpp == (1,)
    assert build_space(axes, setting(2)).cps == [1, 2]


def test_lists_that_are_given_stay():
    axes = Axes(tp=(2,), cp=(3,), pp=(5,), micro_batch=(7,))

    assert explicit(axes, world_size=4, global_batch_seqs=4) == axes


def test_the_baseline_is_the_smallest_legal_layout():
    space = build_space(NARROW, setting(4))

    assert choose_baseline(space, Baseline(), setting(4)) == candidate(dp=4)


def test_the_baseline_is_what_the_user_runs_today():
    space = build_space(NARROW, setting(4))

    assert choose_baseline(space, Baseline(cp=2, tp=2), setting(4)).layout.cp == 2
    assert choose_baseline(space, Baseline(tp=4), setting(4)).layout.tp == 4


def test_a_baseline_outside_the_legal_set_is_refused_with_a_legal_one():
    space = build_space(NARROW, setting(4))

    with pytest.raises(SpecError, match=r"^baseline \| tp=3 micro_batch=2 is not in the legal set"):
        choose_baseline(space, Baseline(tp=3, micro_batch=2), setting(4))


def test_the_candidates_of_one_degree():
    one, two = candidate(dp=2), candidate(cp=2)
    space = space_of(one, two)

    assert space.with_cp(2) == [two]
    assert space.with_cp(4) == []
    assert space.cps == [1, 2]


def test_preparing_writes_out_every_choice():
    prepared = prepare(sweep_spec(), None)

    assert prepared.spec.axes.tp == (1, 2, 4)
    assert prepared.spec.axes.micro_batch == (1, 2, 4)
    assert prepared.baseline == prepared.space.candidates[0]
    assert prepare(prepared.spec, None).space == prepared.space


def test_the_stack_of_the_trials_is_written_out_and_no_other_taken():
    assert prepare(sweep_spec(), None).spec.stack == StackSpec(kind=Stack.EAGER)
    other = StackSpec(kind=Stack.FUSED, kernel="fa3", pipeline=PipelineSplit.BALANCED)

    with pytest.raises(SpecError) as caught:
        resolve(replace(sweep_spec(), stack=other), None)

    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        f"stack.{word}, but trials run torch modules and deal layers evenly"
        for word in ("kind | fused", "kernel | fa3", "pipeline | balanced")
    ]
    assert str(caught.value).endswith("nearest legal: even")


def test_what_trials_measure_is_no_word_of_their_stack():
    asked = StackSpec(tp_inputs=TensorInputs.GATHERED, check_s=1e-3)

    with pytest.raises(SpecError) as caught:
        resolve(replace(sweep_spec(), stack=asked), None)

    assert str(caught.value).splitlines() == [
        f"stack.{word}, but trials measure what they hold and wait for; nearest legal: leave it out"
        for word in ("tp_inputs | gathered", "check_s | 0.001")
    ]


def test_the_world_is_every_cpu_that_is_found():
    spec = sweep_spec("[cluster]\n")
    found = Topology(source="nvml", nodes=(node(cpus=2), node("node1", cpus=None)))

    assert resolve(spec, found).cluster.world_size == 3


def test_the_world_is_every_gpu_that_is_found_unless_the_spec_says_cpu():
    found = Topology(source="nvml", nodes=(node(cpus=3, gpus=1), node("node1", cpus=3, gpus=1)))

    assert resolve(sweep_spec("[cluster]\n"), found).cluster.world_size == 2
    spec = sweep_spec('[cluster]\ngpu = "cpu"\n')
    assert resolve(spec, found).cluster == replace(spec.cluster, world_size=6)


def test_what_no_candidate_could_run_is_refused_at_once():
    spec = sweep_spec().__class__(
        name="a", model=sweep_spec().model, workload=workload(precision="fp8", lengths="prolong")
    )

    with pytest.raises(SpecError) as caught:
        prepare(spec, Topology(source="nvml", nodes=(node(cpus=2),)))

    assert str(caught.value).splitlines() == [
        "workload.precision | precision fp8 cannot be tried by the torch trial, wanted bf16, fp32",
        "workload.lengths | lengths prolong cannot be tried by the torch trial, wanted full, or "
        'mask "document", which alone knows documents',
    ]


def test_a_run_whose_documents_changed_is_not_gone_on_with():
    trial = trial_of(candidate(), number=3)

    refuse_other_batch([trial], STAMP)
    with pytest.raises(SpecError, match=r"trial 3 of this run trained on another batch") as caught:
        refuse_other_batch([trial], replace(STAMP, convergence="d" * 64))
    assert caught.value.hint == (
        "restore the file of document lengths, or give the run another name"
    )
