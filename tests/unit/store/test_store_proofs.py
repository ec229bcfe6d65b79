"""A kept proof is read as it was; one of other software, cut, edited or swapped is none."""

import json
from dataclasses import replace

import pytest

from cptune.domain.proof import Check, Proof
from cptune.store.proofs import PROOFS, read_proof, tidy_proofs, write_proof

PROOF = Proof(
    candidate_key="tp1-cp2",
    fixture="f" * 64,
    checks=(Check(name="loss", max_error=1e-16, tolerance=1e-10),),
)


@pytest.fixture
def kept(tmp_path):
    write_proof(tmp_path, PROOF, execution="e")
    return tmp_path / PROOFS / "tp1-cp2.json"


def test_it_is_read_as_it_was(kept):
    assert read_proof(kept.parents[1], "tp1-cp2", execution="e") == PROOF
    assert read_proof(kept.parents[1], "tp1-cp4", execution="e") is None


def test_by_other_software_it_is_none(kept):
    assert read_proof(kept.parents[1], "tp1-cp2", execution="other") is None


def test_of_another_candidate_it_is_none(kept):
    kept.rename(kept.with_name("tp1-cp4.json"))
    assert read_proof(kept.parents[1], "tp1-cp4", execution="e") is None


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_cut_it_is_none(kept, share):
    text = kept.read_text()
    kept.write_text(text[: int(share * len(text))])
    assert read_proof(kept.parents[1], "tp1-cp2", execution="e") is None


@pytest.mark.parametrize(
    "changes",
    [{"max_error": 1.0}, {"max_error": 0.0}, {"tolerance": 1.0}, {"where": "x"}, {"name": "y"}],
    ids=str,
)
def test_edited_it_is_none(kept, changes):
    content = json.loads(kept.read_text())
    content["checks"][0] |= changes
    kept.write_text(json.dumps(content))
    assert read_proof(kept.parents[1], "tp1-cp2", execution="e") is None


def test_a_refuted_one_that_is_made_to_pass_is_none(tmp_path):
    wrong = Check(name="gradients", max_error=1.0, tolerance=1e-10)
    write_proof(tmp_path, replace(PROOF, checks=(*PROOF.checks, wrong)), execution="e")
    path = tmp_path / PROOFS / "tp1-cp2.json"
    assert read_proof(tmp_path, "tp1-cp2", execution="e").refuted
    content = json.loads(path.read_text())
    for check in content["checks"]:
        check |= {"max_error": 0.0, "passed": True}
    path.write_text(json.dumps(content | {"passed": True}))
    assert read_proof(tmp_path, "tp1-cp2", execution="e") is None


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 100_000])
def test_what_is_no_proof_at_all_is_none(kept, text):
    kept.write_text(text)
    assert read_proof(kept.parents[1], "tp1-cp2", execution="e") is None


def test_what_a_killed_writer_left_is_removed_and_a_proof_is_not(kept):
    left = kept.with_name(".tmp-tp1-cp4.json-1-abcd")
    left.write_text("{")
    tidy_proofs(kept.parents[1])
    assert (left.exists(), kept.exists()) == (False, True)
    tidy_proofs(kept.parent)  # nothing there is nothing to do
