"""No recipe that a proof refutes, and one proof a candidate however often it runs."""

import pytest
from fakes import ScriptedLauncher, candidate, measured, trial_of
from test_search_loop import CP1, CP1_TP2, CP2, CP4, STAMP, Bench, truth

from cptune.domain.outcome import OutcomeKind
from cptune.domain.proof import Check, Proof

RIGHT = Check(name="causal: loss", max_error=0.0, tolerance=1e-10)
WRONG = Check(name="causal: gradients", max_error=1.0, tolerance=1e-10)


class Prover:
    """Proves all but the keys that it is told are wrong, or cannot be run."""

    def __init__(self, *, wrong=(), missing=()):
        self.wrong, self.missing, self.asked = set(wrong), set(missing), []

    def __call__(self, one):
        self.asked.append(one.key)
        check = WRONG if one.key in self.wrong else RIGHT
        lost = one.key in self.missing
        return Proof(
            candidate_key=one.key,
            fixture="f",
            checks=() if lost else (check,),
            why_missing="rank 1 is gone" if lost else "",
        )


def bench_of(prover, *, default=truth, **more):
    return Bench(ScriptedLauncher(default=default), prove=prover, **more)


def close(one):
    """CP=2 and CP=4 are as fast as each other; CP=1 does not fit."""
    return truth(one) if one.layout.cp == 1 else measured(step_s=0.1 + 0.001 * one.layout.cp)


def test_the_choice_alone_is_proven_and_its_recipe_stands():
    bench = bench_of(prover := Prover())
    assert bench.loop.run().trial.candidate == CP2
    assert prover.asked == [CP2.key]
    assert bench.loop.proof_of(CP2).passed
    assert prover.asked == [CP2.key]


def test_a_choice_that_is_refuted_is_kept_as_a_wrong_result_and_another_is_chosen():
    bench = bench_of(Prover(wrong=[CP2.key]), default=close)
    choice = bench.loop.run()
    assert choice.trial.candidate == CP4
    last = [one for one in bench.ledger.kept if one.candidate == CP2][-1]
    assert (last.kind, last.attempt) == (OutcomeKind.WRONG_RESULT, 1)
    assert last.proof_id == bench.loop.proof_of(CP2).id
    (entry,) = [one for one in choice.certificate if one.cp == 2]
    assert "wrong_result" in entry.reason


def test_where_all_are_refuted_there_is_no_recipe():
    everything = [one.key for one in (CP1, CP1_TP2, CP2, CP4)]
    bench = bench_of(Prover(wrong=everything), default=close)
    assert bench.loop.run().trial is None


def test_finalists_are_proven_before_their_first_round_and_once():
    bench = bench_of(prover := Prover(), default=close, finalist_rounds=3)
    bench.loop.run()
    assert sorted(prover.asked) == sorted([CP2.key, CP4.key])
    finals = [one for one in bench.ledger.kept if one.round]
    assert len(finals) == 6
    assert {one.proof_id for one in finals} == {bench.loop.proof_of(one).id for one in (CP2, CP4)}
    assert {one.proof_id for one in bench.ledger.kept if not one.round} == {None}


def test_a_finalist_that_is_refuted_is_not_timed_again():
    bench = bench_of(Prover(wrong=[CP2.key]), default=close, finalist_rounds=3)
    assert bench.loop.run().trial.candidate == CP4
    assert bench.launcher.launched.count(CP2.key) == 1


def test_a_proof_that_cannot_be_run_is_said_and_refutes_nothing():
    bench = bench_of(Prover(missing=[CP2.key]))
    choice = bench.loop.run()
    assert choice.trial.candidate == CP2
    assert any("rank 1 is gone" in note for note in bench.observer.notes)
    assert not bench.loop.proof_of(CP2).passed


def test_a_resumed_search_that_is_done_proves_its_choice_all_the_same():
    bench = bench_of(Prover())
    bench.loop.run()
    again = bench_of(prover := Prover(wrong=[CP2.key]), default=close, ledger=bench.ledger)
    assert again.loop.run().trial is None or again.loop.run().trial.candidate != CP2
    assert CP2.key in prover.asked


@pytest.mark.parametrize("tried", [CP1, candidate(cp=2, dp=2)])
def test_the_stamp_of_a_trial_says_nothing_of_proofs_unless_there_was_one(tried):
    assert trial_of(tried).proof_id is None
    assert STAMP.convergence
