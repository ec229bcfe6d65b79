"""Another run of a recipe: what must be equal is; what may differ stays inside what was stated."""

import json
from dataclasses import replace

import pytest
from fakes import candidate, failed, rank_report
from hypothesis import given
from hypothesis import strategies as st
from recipe_cases import CP2, content_of, edited, proof_of, recipe_of, with_workload, written

from cptune.cli import run
from cptune.domain.candidate import DataParallelKind, Strategy
from cptune.domain.outcome import measurement_from
from cptune.domain.reported import sum_of_reports
from cptune.domain.rules import Setting
from cptune.domain.standing import Condition, Likeness
from cptune.errors import SpecError
from cptune.keeping import commands_of
from cptune.kept import read_recipe
from cptune.recipe.reproduce import PEAK_TOLERANCE, Again, compare, is_reproduced
from cptune.report.reproduce import reproduce_answer, reproduce_view
from cptune.reproduce import Reproduction, refuse_older, spec_again
from cptune.search.prepare import narrow, prepare
from cptune.search.space import build_space
from cptune.store.run_directory import RunDirectory


def steps(seconds, **changes):
    """A measurement of six steps or more, as long on every rank."""
    fields = {"sample_hash": "ab", "peak_allocated_bytes": 10_000, **changes}
    count = len(seconds)
    blocked = {f"{axis}_exposed_s": (0.0,) * count for axis in ("tp", "cp", "dp", "pp")}
    reports = (rank_report(rank, step_s=tuple(seconds), **blocked | fields) for rank in range(4))
    return measurement_from(tuple(reports), tokens_per_step=256)


STEADY = [0.200, 0.201, 0.202, 0.203, 0.204, 0.205]
RECIPE = recipe_of(measurement=steps(STEADY))


def again_of(measurement=None, **changes):
    seen = measurement or steps(STEADY)
    fields = {
        "convergence": RECIPE.fingerprints["convergence"],
        "ruling": "chosen",
        "reason": "",
        "measurement": seen,
        "reported": sum_of_reports(seen, CP2.layout),
        "proof": proof_of(CP2),
    }
    return Again(**fields | changes)


PROOF = proof_of(CP2)
REFUTED = replace(PROOF, checks=tuple(replace(one, max_error=1.0) for one in PROOF.checks))


def odd(again, *, recipe=RECIPE, same_execution=True):
    rows = compare(recipe, again, same_execution=same_execution)
    usual = (Likeness.SAME, Likeness.WITHIN)
    assert is_reproduced(rows) is all(row.verdict is not Likeness.DIFFERS for row in rows)
    return {row.what: row.verdict.value for row in rows if row.verdict not in usual}


def test_the_same_run_is_reproduced():
    assert odd(again_of()) == {}
    assert odd(again_of(steps([one * 1.02 for one in STEADY]))) == {}


@pytest.mark.parametrize(
    ("again", "what"),
    [
        (again_of(convergence="d" * 64), "convergence_fingerprint"),
        (again_of(steps(STEADY, sample_hash="ac")), "batch_hash"),
        (again_of(steps(STEADY, first_loss=5.501)), "first_loss"),
        (again_of(steps(STEADY, first_loss=float("nan"))), "first_loss"),
        (again_of(steps(STEADY, first_grad_norm=1.2)), "first_grad_norm"),
        (again_of(steps(STEADY, kernel="flash_attention_2")), "kernel"),
        (again_of(steps(STEADY, peak_allocated_bytes=10_201)), "peak_allocated_bytes"),
        (again_of(steps(STEADY, peak_allocated_bytes=9_799)), "peak_allocated_bytes"),
        (again_of(steps([one * 1.2 for one in STEADY])), "step_s"),
        (again_of(steps([one / 1.2 for one in STEADY])), "step_s"),
        (again_of(steps(STEADY, cp_exposed_s=(0.1,) * 6)), "exposed_share"),
        (again_of(proof=proof_of(CP2, fixture="0" * 64)), "equivalence_fixture"),
        (again_of(proof=REFUTED), "equivalence_passed"),
        (again_of(ruling="over margin", reason="too much"), "ruling"),
    ],
)
def test_each_difference_is_caught_alone(again, what):
    assert odd(again) == {what: "differs"}


def test_a_loss_within_the_tolerance_of_the_loop_is_within():
    rows = compare(
        RECIPE, again_of(steps(STEADY, first_loss=5.5 * (1 + 5e-5))), same_execution=True
    )
    assert {row.what: row.verdict for row in rows}["first_loss"] is Likeness.WITHIN


def test_a_run_that_failed_differs_with_its_reason():
    failure = failed(message="rank 1 is gone")
    again = again_of(ruling=failure.kind.value, reason=failure.message)
    again = replace(again, measurement=None, reported=None)

    rows = compare(RECIPE, again, same_execution=True)

    assert not is_reproduced(rows)
    assert [row.rule for row in rows if row.verdict is Likeness.DIFFERS] == [
        "passes the limits of the recipe: rank 1 is gone"
    ]


def test_what_nobody_knows_is_not_a_difference():
    assert odd(again_of(steps(STEADY[:5]), proof=None)) == {
        "equivalence_fixture": "unknown",
        "equivalence_passed": "unknown",
        "step_s": "unknown",
    }


def test_of_another_execution_the_mathematics_alone_is_judged():
    slow = steps([one * 2 for one in STEADY], peak_allocated_bytes=20_000)
    assert odd(again_of(slow), same_execution=False) == {
        "peak_allocated_bytes": "not judged",
        "step_s": "not judged",
        "exposed_share": "not judged",
    }
    wrong = again_of(steps(STEADY, first_loss=5.6))
    assert odd(wrong, same_execution=False)["first_loss"] == "differs"


@given(
    st.lists(st.floats(0.1, 0.2), min_size=6, max_size=20),
    st.lists(st.floats(0.1, 0.2), min_size=6, max_size=20),
)
def test_whether_two_timings_agree_does_not_depend_on_their_order(first, second):
    one, other = steps(first), steps(second)

    def verdict(then, now):
        rows = compare(recipe_of(measurement=then, proof=None), again_of(now), same_execution=True)
        return next(row.verdict for row in rows if row.what == "step_s")

    assert verdict(one, other) is verdict(other, one)
    assert verdict(one, one) is Likeness.WITHIN


@pytest.mark.parametrize(
    "tried",
    [
        CP2,
        candidate(dp=4),
        candidate(tp=2, cp=2),
        candidate(cp=4, strategy=Strategy.ALL_GATHER, stages=1),
        candidate(cp=2, dp=2, ulysses=2, strategy=Strategy.ULYSSES, stages=0).canonical(),
        candidate(cp=4, ulysses=2, strategy=Strategy.HYBRID, stages=1),
        candidate(pp=2, dp=2, micro_batch=1),
    ],
)
def test_the_other_run_has_the_spec_of_the_recipe_and_its_candidate_is_legal_there(tried, tmp_path):
    recipe = recipe_of(tried, proof=None)
    spec = spec_again(recipe, runs=tmp_path, name=None)

    assert (spec.model, spec.workload) == (recipe.spec.model, recipe.spec.workload)
    assert spec.cluster.world_size == 4
    assert spec.search.seed == recipe.spec.search.seed
    assert spec.name == "fake-again"
    setting = Setting(model=spec.model, workload=spec.workload, world_size=4)
    assert tried.key in {one.key for one in build_space(spec.axes, setting).candidates}


def test_a_name_that_is_taken_is_refused_and_one_of_ours_is_counted_on(tmp_path):
    (tmp_path / "fake-again").mkdir()

    assert spec_again(RECIPE, runs=tmp_path, name=None).name == "fake-again-2"
    with pytest.raises(SpecError, match="run 'fake-again' exists"):
        spec_again(RECIPE, runs=tmp_path, name="fake-again")
    with pytest.raises(SpecError, match=r"--name \| name is 'a b'"):
        spec_again(RECIPE, runs=tmp_path, name="a b")


def test_an_older_file_is_refused_with_what_it_lacks_and_the_way_out(tmp_path, capsys):
    content = content_of(RECIPE)
    del content["digests"], content["run"], content["measurement"]["batch_hash"]
    path = written(tmp_path, content)

    with pytest.raises(SpecError) as caught:
        refuse_older(read_recipe(path))
    assert "it lacks run.cluster, run.budget, run.seed, measurement.batch_hash" in str(caught.value)
    assert caught.value.hint == "make a new one: cptune sweep spec.toml"
    assert run(["recipe", "reproduce", str(path), "--runs", str(tmp_path)]) == 2
    assert "lacks run.cluster" in capsys.readouterr().err


def test_a_file_that_was_edited_is_refused_before_anything_is_started(tmp_path, capsys):
    path = written(tmp_path, edited(content_of(RECIPE), "measurement.first_loss", 5.0, seal=False))

    assert run(["recipe", "reproduce", str(path), "--runs", str(tmp_path)]) == 2
    assert "measurement | edited after it was written" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["recipe.json"]


def test_what_it_came_to_is_said_in_a_sentence_and_in_json(tmp_path):
    conditions = (
        Condition(what="torch", then="2", now="3"),
        Condition(what="ray", then="2", now="2"),
    )
    stopped = Reproduction(conditions=conditions, rows=(), run=None)
    assert not stopped.reproduced
    assert stopped.summary.startswith("reproduce: torch changed, so it was not run; --changed")

    rows = tuple(compare(RECIPE, again_of(), same_execution=False))
    done = replace(stopped, rows=rows, run=tmp_path)
    assert done.reproduced
    assert done.summary.endswith("; open: peak_allocated_bytes, step_s, exposed_share")

    rows = tuple(compare(RECIPE, again_of(steps(STEADY, sample_hash="1")), same_execution=True))
    other = replace(done, rows=rows)
    assert not other.reproduced
    assert other.summary == f"not reproduced in {tmp_path}: batch_hash differ"
    told = reproduce_answer(conditions, rows, run=str(tmp_path), reproduced=other.reproduced)
    assert json.loads(json.dumps(told))["rows"][4]["verdict"] == "differs"
    assert told["requalify"] is True
    assert reproduce_view(conditions, rows).renderables


def test_the_tolerance_of_the_peak_is_what_is_printed():
    rows = compare(RECIPE, again_of(), same_execution=True)
    (peak,) = (row for row in rows if row.what == "peak_allocated_bytes")
    assert peak.rule == f"within {PEAK_TOLERANCE:g} of it"


def test_another_workload_is_another_convergence():
    other = recipe_of(spec=with_workload(seq_len=128))
    assert odd(again_of(convergence="f" * 64), recipe=other)["convergence_fingerprint"] == "differs"


def test_one_candidate_of_a_legal_set_is_tried_alone():
    spec = replace(RECIPE.spec, cluster=replace(RECIPE.spec.cluster, gpu="cpu"))
    prepared = prepare(spec, None)

    alone = narrow(prepared, CP2)

    assert [one.key for one in alone.space.candidates] == [CP2.key] == [alone.baseline.key]
    assert narrow(prepared, None) is prepared
    with pytest.raises(SpecError, match=r"tp8-cp1-.* is not legal on 4 ranks here"):
        narrow(prepared, candidate(tp=8))


def test_a_recipe_names_the_commands_that_are_true_of_it(tmp_path):
    with RunDirectory(tmp_path / "r") as directory:
        sharded = replace(CP2, data_parallel=DataParallelKind.FSDP)
        several = commands_of(recipe_of(sharded, proof=None), directory)
        path = directory.path / "recipe.json"

    assert several == (
        f"cptune sweep {tmp_path / 'r' / 'spec.toml'} --name fake-again",
        f"cptune recipe show {path}",
        f"cptune recipe requalify {path}",
        f"cptune recipe reproduce {path}",
        f"cptune recipe export {path} --to torchtitan",
        f"cptune recipe export {path} --to accelerate",
    )
