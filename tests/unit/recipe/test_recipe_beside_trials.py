"""A recipe read back is the one that was kept, and what contradicts its trials is named."""

import json

import pytest
from fakes import STAMP, candidate, sweep_spec, trial_of

from cptune.domain.environment import RankEnvironment
from cptune.domain.proof import Check, Proof
from cptune.domain.recipe import CertificateEntry, Control, Evidence, Recipe
from cptune.recipe.beside_trials import contradictions, read_back

TRIAL = trial_of(candidate(cp=2, dp=2), number=3)
RECIPE = Recipe(
    spec=sweep_spec(),
    candidate=TRIAL.candidate,
    placement=TRIAL.placement,
    measurement=TRIAL.measurement,
    predicted=None,
    capacity_bytes=1 << 20,
    certificate=(
        CertificateEntry(cp=1, reason="did not fit", evidence=Evidence.MEASURED),
        CertificateEntry(cp=3, reason="open", evidence=None),
    ),
    controls=(Control(candidate_key="k", cp=4, verdict="slower", reason="slow"),),
    versions={"torch": "2"},
    fingerprints=STAMP.fingerprints,
    environment=RankEnvironment(shared={"A": "1"}, differing={"B": {"n": None}}),
    caveats=("one",),
    commands=("cptune sweep",),
    expectation={"step_s": 0.5},
    proof=Proof(
        candidate_key=TRIAL.candidate.key,
        fixture="f",
        checks=(Check(name="loss", max_error=1e-13, tolerance=1e-10),),
    ),
)


def content(**changes):
    return json.loads(json.dumps(RECIPE.to_json())) | changes


def back(told):
    return read_back(
        told,
        spec=RECIPE.spec,
        trial=TRIAL,
        measurement=TRIAL.measurement,
        capacity_bytes=RECIPE.capacity_bytes,
    )


def test_what_was_kept_is_read_back_whole():
    assert back(content()) == RECIPE
    assert contradictions(content(), back(content())) == []


def test_an_older_recipe_lacks_what_came_later_and_contradicts_nothing():
    told = content()
    for later in ("equivalence", "environment", "caveats", "expectation"):
        del told[later]

    seen = back(told)

    assert (seen.proof, seen.caveats, seen.environment) == (None, (), RankEnvironment())
    assert contradictions(told, seen) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidate_key": "x"}, 'candidate_key is "x" in recipe.json, "tp1-cp2-'),
        ({"mesh": []}, "mesh is [] in recipe.json, [{"),
        ({"layout": {"cp": 4}}, "layout.cp is 4 in recipe.json, 2 by its trials"),
    ],
)
def test_a_contradiction_names_its_place_and_both_values(changes, said):
    told = content(**changes)

    (found,) = contradictions(told, RECIPE)

    assert found.startswith(said)


def test_of_many_contradictions_the_first_are_named():
    told = content(measurement=dict.fromkeys(content()["measurement"], "x"))

    found = contradictions(told, RECIPE)

    assert len(found) == 6
    assert found[-1].startswith("and ")
