"""Everything that a recipe was found under is compared; what is not known now forces nothing."""

import json
from dataclasses import replace

import pytest
from fakes import STAMP, candidate, measured, model, sweep_spec, trial_of, workload

from cptune.cli import run
from cptune.domain.environment import RankEnvironment
from cptune.domain.proof import Check, Proof
from cptune.domain.recipe import Recipe
from cptune.domain.standing import Standing
from cptune.proof.fixture import proof_case
from cptune.recipe.requalify import check_schema, conditions_of

CP2 = candidate(cp=2, dp=2)
SPEC = sweep_spec()
FIXTURE = proof_case(CP2, model=SPEC.model, workload=SPEC.workload).digest
ENVIRONMENT = RankEnvironment(shared={"OMP_NUM_THREADS": "1"})


def with_versions(**versions):
    return replace(STAMP, versions=RankEnvironment(shared=versions))


STAMPED = with_versions(torch="2.13.0", python="3.11.7")


def recipe_of(**changes):
    trial = trial_of(CP2, measured())
    proof = Proof(
        candidate_key=CP2.key,
        fixture=FIXTURE,
        checks=(Check(name="loss", max_error=0.0, tolerance=1e-10),),
    )
    fields = {
        "spec": SPEC,
        "candidate": CP2,
        "placement": trial.placement,
        "measurement": trial.measurement,
        "predicted": None,
        "capacity_bytes": 1000,
        "certificate": (),
        "controls": (),
        "versions": STAMPED.versions.texts(),
        "fingerprints": STAMPED.fingerprints,
        "environment": ENVIRONMENT,
        "commands": (),
        "proof": proof,
    }
    return json.loads(json.dumps(Recipe(**fields | changes).to_json()))


def odd(recipe, *, stamp=STAMPED, environment=ENVIRONMENT, **training):
    now = {"topology_hash": stamp.topology, "versions": stamp.versions.texts()}
    found = conditions_of(recipe, **now, environment=environment, **training)
    return {one.what: one.standing.value for one in found if one.standing is not Standing.SAME}


def test_nothing_has_changed_on_the_same_machine():
    assert odd(recipe_of()) == {}
    assert odd(recipe_of(), model=SPEC.model, workload=SPEC.workload) == {}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"stamp": replace(STAMPED, topology="x" * 64)}, "topology"),
        ({"stamp": with_versions(torch="3", python="3.11.7")}, "torch"),
        ({"stamp": with_versions(python="3.11.7")}, "torch"),
        (
            {"stamp": with_versions(**STAMPED.versions.shared, **{"flash-attn": "2.8"})},
            "flash-attn",
        ),
        (
            {"environment": RankEnvironment(shared={"OMP_NUM_THREADS": "2"})},
            "OMP_NUM_THREADS",
        ),
        ({"environment": RankEnvironment()}, "OMP_NUM_THREADS"),
        (
            {"environment": RankEnvironment(shared={"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"})},
            "NCCL_ALGO",
        ),
        ({"model": model(layers=9)}, "model.layers"),
        ({"workload": workload(seq_len=65)}, "workload.seq_len"),
        ({"workload": workload(mask="full")}, "workload.mask"),
    ],
)
def test_a_change_is_named(changes, what):
    assert odd(recipe_of(), **changes) == {what: "changed"}


def test_another_fixture_forces_another_proof_and_without_a_proof_it_is_not_known():
    recipe = recipe_of()
    recipe["equivalence"]["fixture"] = "0" * 64
    assert odd(recipe) == {"equivalence fixture": "changed"}
    assert odd(recipe_of(proof=None)) == {"equivalence fixture": "unknown"}
    failed = Proof(candidate_key=CP2.key, fixture=FIXTURE, why_missing="rank 1 is gone")
    assert odd(recipe_of(proof=failed)) == {"equivalence fixture": "unknown"}


def test_what_is_not_known_now_forces_nothing():
    assert odd(recipe_of(), environment=None) == {"environment of the ranks": "unknown"}
    torn = RankEnvironment(differing={"NCCL_ALGO": {"a": "Ring", "b": None}})
    assert odd(recipe_of(environment=torn), environment=torn) == {"NCCL_ALGO, by rank": "unknown"}


def test_a_recipe_from_before_there_were_environments_is_still_compared():
    recipe = recipe_of()
    del recipe["environment"]
    assert odd(recipe) == {"environment of the ranks": "unknown"}


@pytest.mark.parametrize("content", [{}, {"schema": 2, "mesh": []}, {"schema": 1}])
def test_what_is_no_recipe_is_refused(content):
    with pytest.raises(ValueError, match=r"wanted a recipe\.json of schema 1"):
        check_schema(content)


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", None])
def test_the_command_refuses_it_before_anything_is_started(text, tmp_path, capsys):
    path = tmp_path / "recipe.json"
    if text is not None:
        path.write_text(text)
    assert run(["recipe", "requalify", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
