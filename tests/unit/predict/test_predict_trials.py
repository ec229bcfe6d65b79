"""The prediction of trials: what finished ones teach it, and what it rules out."""

from dataclasses import replace

import pytest
from fakes import candidate, measured, out_of_memory, sweep_spec, trial_of

from cptune.domain.outcome import OutcomeKind
from cptune.predict.facts import read_gpu
from cptune.predict.found import cpu_machine
from cptune.predict.memory import MemoryModel
from cptune.predict.prediction import Predictor
from cptune.predict.trials import TrialPredictor
from cptune.search.prepare import resolve

ONE, TWO, FOUR = candidate(dp=4), candidate(cp=2, dp=2), candidate(cp=4)


def predictor(capacity_bytes=1 << 40):
    spec = resolve(sweep_spec(), None)
    machine = cpu_machine(spec.cluster, nodes=1, capacity_bytes=capacity_bytes)
    return TrialPredictor(spec, machine=machine)


def slow(one, *, number, times=3.0, peak=1.0):
    """A trial that took so many times what the model as it ships says of it."""
    said = predictor().predict(one)
    seen = measured(step_s=times * said.step_s, peak_bytes=round(peak * said.peak_bytes))
    return trial_of(one, seen, number=number)


def test_the_first_trial_sets_the_rate_and_says_so_in_the_version():
    known = predictor()
    before = known.predict(TWO)
    assert known.learn([slow(ONE, number=0)])

    after = known.predict(TWO)
    assert after.step_s > 2 * before.step_s
    assert before.model_version == predictor().model_version
    assert after.model_version.startswith(f"{before.model_version}+1trials.")
    assert after.model_version == known.model_version


def test_the_error_of_a_steady_slowdown_is_gone_after_some_trials():
    known = predictor()
    known.learn([slow(one, number=at, peak=0.8) for at, one in enumerate((ONE, TWO))])

    error = known.predict(FOUR).step_s / slow(FOUR, number=2).measurement.step_s - 1
    assert abs(error) < 0.25  # 67% before
    peak = known.predict(FOUR).peak_bytes / predictor().predict(FOUR).peak_bytes
    assert peak == pytest.approx(0.8**0.5, rel=1e-3)


def test_what_is_learnt_does_not_depend_on_when_it_was_read():
    trials = [slow(one, number=at, times=2.0 + at) for at, one in enumerate((ONE, TWO, FOUR))]
    step_by_step, resumed = predictor(), predictor()
    versions = []
    for trial in trials:
        step_by_step.learn([trial])
        versions.append(step_by_step.model_version)
    resumed.learn(trials[::-1])

    assert resumed.model_version == versions[-1]
    assert resumed.predict(ONE) == step_by_step.predict(ONE)
    assert len(set(versions)) == 3


def test_a_failure_and_a_trial_that_is_known_begin_no_version():
    known, one = predictor(), slow(ONE, number=0)
    assert not known.learn([trial_of(TWO, out_of_memory())])
    assert known.learn([one])
    assert not known.learn([one, trial_of(FOUR, out_of_memory(), number=1)])


def test_a_step_that_only_waited_still_calibrates():
    known = predictor()
    waiting = trial_of(ONE, measured(step_s=1.0, exposed_share=1.0))
    assert known.learn([waiting])
    assert known.predict(ONE).step_s > 0


def test_only_what_must_exceed_the_budget_is_ruled_out_with_what_is_missing():
    low = predictor().predict(ONE).peak_lo_bytes
    assert predictor(low).why_too_big(ONE) is None
    assert predictor(0).why_too_big(ONE) is None  # no budget is known

    failure = predictor(low - 1000).why_too_big(ONE)
    assert failure.kind is OutcomeKind.INFEASIBLE
    assert failure.shortage.short_bytes == 1000
    assert failure.message.startswith("predicted, not tried: needs at least ")
    assert predictor().model_version in failure.message


def test_what_was_learnt_moves_no_bound_that_prunes():
    low = predictor().predict(ONE).peak_lo_bytes
    known = predictor(low)
    tried = [replace(ONE, micro_batch=1 << at) for at in range(9)]
    known.learn([slow(one, number=at, peak=1.2) for at, one in enumerate(tried)])
    assert known.predict(ONE).peak_lo_bytes > low  # the band narrowed
    assert known.why_too_big(ONE) is None


def test_the_fastest_that_likely_fit_come_first():
    peaks = {one: predictor().predict(one).peak_bytes for one in (ONE, TWO, FOUR)}
    known = predictor(round(peaks[TWO] / 0.9))  # the margin is 8%: CP=1 is tight
    ranked = known.fastest([ONE, FOUR, TWO], count=2)

    assert set(ranked) == {TWO, FOUR}
    steps = [known.predict(one).step_s for one in ranked]
    assert steps == sorted(steps)
    assert predictor().fastest([ONE, FOUR, TWO], count=1) == [
        min((ONE, TWO, FOUR), key=lambda one: predictor().predict(one).step_s)
    ]


def test_what_a_trial_keeps_is_counted_and_prunes_nothing_more():
    known, case = predictor(), predictor()._case
    plain = MemoryModel(case)
    for one in (ONE, TWO, FOUR, candidate(tp=2, dp=2)):
        said, stacks = known.predict(one), plain.band(one)
        assert said.peak_lo_bytes == round(stacks.low_bytes)
        assert said.peak_bytes != round(stacks.likely_bytes)
        assert said.peak_hi_bytes < stacks.high_bytes
        assert said.peak_lo_bytes < said.peak_bytes < said.peak_hi_bytes


def test_an_exchange_costs_the_thread_of_a_cpu_rank_and_not_that_of_a_gpu():
    here = predictor()._case
    free = replace(here.machine, gpu=replace(here.machine.gpu, exchange_s=0.0))

    def added(one):
        cases = (here, replace(here, machine=free))
        dear, cheap = (Predictor(case).predict(one).time.compute_s for case in cases)
        return round((dear - cheap) / here.machine.gpu.exchange_s / here.model.layers)

    passes = here.workload.global_batch_seqs
    assert added(ONE) == 0
    assert added(TWO) == passes // 2 * 3  # one message forward, two backward
    assert added(FOUR) == passes * 3 * FOUR.stages
    assert added(candidate(tp=2, dp=2)) == passes // 2 * 8
    assert read_gpu("H100-SXM-80GB").exchange_s == 0
