"""A proof holds when every check does; a number that is none passes nothing."""

import json
import math
from dataclasses import replace

import pytest

from cptune.domain.outcome import OutcomeKind
from cptune.domain.proof import Check, Proof, join_checks, proof_from_json, why_wrong

GOOD = Check(name="causal: loss", max_error=1e-16, tolerance=1e-10)
BAD = Check(name="causal: gradients", max_error=0.03, tolerance=1e-10, where="blocks.0.k")
NONE = Check(name="seams", max_error=math.nan, tolerance=0.0)
PROOF = Proof(candidate_key="cp2", fixture="f" * 64, checks=(GOOD, BAD))


def test_every_check_must_pass_and_there_must_be_one():
    assert replace(PROOF, checks=(GOOD,)).passed
    assert not PROOF.passed
    assert not replace(PROOF, checks=(GOOD, NONE)).passed
    assert not replace(PROOF, checks=()).passed


def test_a_proof_that_could_not_be_run_refutes_nothing():
    missing = replace(PROOF, checks=(), why_missing="rank 2 is gone")
    assert (missing.passed, missing.refuted, why_wrong(missing)) == (False, False, None)


def test_a_failure_names_the_worst_check_its_place_and_how_many_fail():
    failure = why_wrong(replace(PROOF, checks=(GOOD, BAD, replace(BAD, name="x", max_error=0.01))))
    assert failure.kind is OutcomeKind.WRONG_RESULT
    assert failure.message == (
        "not the unsharded model: causal: gradients off by 0.03 at blocks.0.k, tolerance 1e-10 "
        "(2 of 3 checks fail)"
    )
    assert why_wrong(replace(PROOF, checks=(GOOD,))) is None


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_what_is_no_number_is_the_worst(error):
    odd = Check(name="leak", max_error=error, tolerance=0.0)
    assert replace(PROOF, checks=(BAD, odd, GOOD)).worst is odd


def test_of_all_ranks_the_largest_error_counts_and_one_that_is_no_number_before_all():
    other = replace(BAD, max_error=0.5, where="blocks.1.k")
    broken = replace(GOOD, max_error=math.nan)
    assert join_checks([[GOOD, BAD], [broken, other]]) == (broken, other)
    assert join_checks([[broken, other], [GOOD, BAD]]) == (broken, other)
    assert join_checks([]) == ()


def test_the_id_is_of_what_was_asked_and_not_of_what_came():
    assert PROOF.id == replace(PROOF, checks=(GOOD, replace(BAD, max_error=0.0))).id
    others = [
        replace(PROOF, candidate_key="cp4"),
        replace(PROOF, fixture="0" * 64),
        replace(PROOF, checks=(GOOD,)),
    ]
    assert len({PROOF.id, *(one.id for one in others)}) == 4


def test_an_error_that_is_no_number_is_null_in_json_and_fails_there_too():
    odd = replace(PROOF, checks=(replace(GOOD, max_error=math.inf), NONE))
    text = json.dumps(odd.to_json(), allow_nan=False)
    again = proof_from_json(json.loads(text))
    assert [one.max_error for one in again.checks] == [math.inf, math.inf]
    assert not again.passed


def test_it_comes_back_from_json_and_one_that_was_edited_does_not():
    content = json.loads(json.dumps(PROOF.to_json()))
    assert proof_from_json(content) == PROOF
    content["checks"][1]["max_error"] = 0.0
    with pytest.raises(ValueError, match="passed False"):
        proof_from_json(content)
