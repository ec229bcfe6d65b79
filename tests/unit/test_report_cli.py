"""`cptune report`: the page of runs that finished, found nothing, still go, were killed or cut."""

import fcntl
import json
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from fakes import (
    STAMP,
    RecordingObserver,
    candidate,
    measured,
    out_of_memory,
    rank_trace,
    sweep_spec,
    trial_of,
)

from cptune.cli import run
from cptune.domain.outcome import measurement_from
from cptune.domain.proof import Check, Proof
from cptune.domain.rules import Setting
from cptune.domain.study import Objective
from cptune.domain.timeline import Span, SpanKind
from cptune.errors import LedgerError
from cptune.keeping import keep_recipe
from cptune.logs import SWEEP_FINISHED, SWEEP_STARTED, EventLog
from cptune.reporting.report import keep_report, read_run
from cptune.search.choose import Limits, choose
from cptune.search.space import build_space, explicit
from cptune.spec import write_toml
from cptune.store.ledger import ParquetLedger
from cptune.store.proofs import write_proof
from cptune.store.run_directory import RunDirectory
from topology.nouns import Node, Topology

CAPACITY = 10_000
SPEC = sweep_spec(
    f"[cluster]\nworld_size = 2\ndevice_memory_bytes = {CAPACITY}\n"
    "[axes]\ntp = [1]\npp = [1]\nmicro_batch = [1]\ncp = [1, 2]\n"
    'strategy = ["ring"]\n[objective]\nexposed_comm_share = 0.5\n'
)
CP1 = trial_of(candidate(dp=2), out_of_memory(300), number=0)
SPAN = Span(
    kind=SpanKind.COMMUNICATION,
    name="keys",
    start_s=0.0,
    stop_s=0.01,
    axis="cp",
    bytes=1000,
    peer=0,
)
SEEN = measured(ranks=2, peak_bytes=700)
SEEN = measurement_from(
    tuple(
        replace(one, trace=rank_trace(spans=(replace(SPAN, peer=1 - one.rank),)))
        for one in SEEN.ranks
    ),
    tokens_per_step=256,
)
CP2 = trial_of(candidate(cp=2), SEEN, number=1)
PROOF = Proof(
    candidate_key=CP2.candidate.key,
    fixture="f" * 64,
    checks=(Check(name="causal: loss", max_error=0.0, tolerance=1e-10),),
)


def limits():
    return Limits(
        capacity_bytes=CAPACITY,
        memory_margin=SPEC.cluster.memory_margin,
        objective=SPEC.objective,
        ci_share=SPEC.budget.ci_share,
    )


def space():
    axes = explicit(SPEC.axes, world_size=2, global_batch_seqs=SPEC.workload.global_batch_seqs)
    return build_space(axes, Setting(model=SPEC.model, workload=SPEC.workload, world_size=2))


def write_run(directory, *, trials=(CP1, CP2), spec=SPEC, finished=True):
    """What a sweep leaves, as it writes it."""
    with ExitStack() as stack:
        made = stack.enter_context(RunDirectory(directory))
        made.spec_path.write_text(write_toml(spec))
        topology = Topology(source="host", nodes=(Node(name="node0"),))
        made.topology_path.write_text(json.dumps(topology.to_json()))
        log = stack.enter_context(closing(EventLog(directory / "log.jsonl")))
        log.write(SWEEP_STARTED)
        log.write("note", message="the first note")
        ledger = ParquetLedger(directory, writable=True)
        for trial in trials:
            ledger.append(trial)
        if finished:
            choice = choose(ledger.read(), space(), limits())
            keep_recipe(spec, choice, limits=limits(), run=made, stamp=STAMP, proof=PROOF)
            write_proof(directory, PROOF, execution=STAMP.execution)
            log.write(SWEEP_FINISHED)
    return directory


ALTERED = "recipe.json is not as it was written: recipes.parquet has another text of it"


@pytest.fixture
def finished(tmp_path):
    return write_run(tmp_path / "runs" / "nightly")


def doubts(directory):
    return read_run(directory).doubts


def test_a_finished_run_is_read_back_as_its_sweep_kept_it(finished):
    seen = read_run(finished)

    kept = json.loads((finished / "recipe.json").read_text())
    assert json.loads(json.dumps(seen.recipe.to_json())) == kept
    assert (seen.state.value, seen.doubts, seen.quarantined) == ("finished", (), ())
    assert [(one.trial.number, one.word) for one in seen.judged] == [
        (0, "out_of_memory"),
        (1, "chosen"),
    ]
    assert seen.notes == ("the first note",)
    assert seen.trace["trial"] == 1


def test_the_command_writes_the_page_and_says_where(finished, capsys):
    assert run(["report", "nightly", "--runs", str(finished.parent), "--format", "json"]) == 0

    out, err = capsys.readouterr()
    answer = json.loads(out)
    page = finished / "report.html"
    assert answer["page"] == str(page)
    assert answer["page_bytes"] == page.stat().st_size < 6_000_000
    assert (answer["state"], answer["certified"], answer["proven"]) == ("finished", True, True)
    assert err == ""
    assert run(["report", str(finished), "--out", str(finished.parent / "b.html")]) == 0
    assert f"page      {finished.parent / 'b.html'} (4." in capsys.readouterr().out
    assert "the timing is noisy" in " ".join(answer["doubts"])


@pytest.mark.parametrize("name", ["recipe.json", "log.jsonl", "trials/x"])
def test_nothing_of_the_run_is_written_over(finished, capsys, name):
    path = finished / name
    if name == "trials/x":
        path = next((finished / "trials").iterdir())
    before = path.read_bytes()

    assert run(["report", str(finished), "--out", str(path)]) == 2

    assert "is the input" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nigthly"], "no run 'nigthly' in {runs}, did you mean 'nightly'?"),
        (["curve"], "run 'curve' is a curve, not a sweep: it holds asked.json"),
        (["x" * 300], "no run 'xxx"),
        ([], "RUN is missing"),
    ],
)
def test_a_wrong_name_exits_2_with_what_is_there(finished, capsys, words, said):
    (finished.parent / "curve").mkdir()
    (finished.parent / "curve" / "asked.json").write_text("{}")

    assert run(["report", *words, "--runs", str(finished.parent)]) == 2
    assert said.format(runs=finished.parent) in capsys.readouterr().err


def test_a_run_without_its_spec_exits_2_and_names_the_file(finished, capsys):
    (finished / "spec.toml").unlink()

    assert run(["report", str(finished)]) == 2
    assert "spec.toml" in capsys.readouterr().err


def test_a_run_that_found_nothing_has_a_page_and_exits_0(tmp_path, capsys):
    directory = write_run(tmp_path / "a", trials=(CP1,))

    assert run(["report", str(directory)]) == 0

    assert "finished: no recipe" in capsys.readouterr().out
    assert "no candidate of 1 passed: 1 out_of_memory" in (directory / "report.html").read_text()


def test_a_run_that_was_killed_says_so_and_what_it_would_choose(tmp_path):
    directory = write_run(tmp_path / "a", finished=False)
    write_proof(directory, PROOF, execution=STAMP.execution)

    seen = read_run(directory)

    assert seen.state.value == "ended early"
    assert "--resume` goes on" in seen.state_note
    assert seen.recipe.candidate.key == CP2.candidate.key
    assert seen.recipe.proof == PROOF
    assert not seen.recipe_text


def test_a_run_that_was_killed_before_its_first_trial_has_a_page(tmp_path, capsys):
    directory = write_run(tmp_path / "a", trials=(), finished=False)

    assert run(["report", str(directory)]) == 0
    assert "ended early: no recipe" in capsys.readouterr().out


def test_a_run_that_still_goes_names_its_driver_and_lets_the_next_one_in(finished):
    with RunDirectory(finished):
        seen = read_run(finished)
        assert seen.state.value == "still going"
        assert "the run is still going, by pid " in seen.state_note
    assert read_run(finished).state.value == "finished"
    RunDirectory(finished).close()


def test_a_reader_of_the_lock_does_not_keep_it(finished):
    with (finished / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        read_run(finished)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_recipe_of_an_earlier_end_is_named_as_one(finished):
    log = EventLog(finished / "log.jsonl")
    log.write(SWEEP_STARTED, resume=True)
    log.close()

    (said,) = doubts(finished)

    assert said == (
        f"recipe.json, which names {CP2.candidate.key}, is of an earlier end of this run"
    )


def test_a_run_from_before_ends_were_logged_is_finished_by_its_recipe(finished):
    lines = (finished / "log.jsonl").read_text().splitlines()
    (finished / "log.jsonl").write_text("\n".join(lines[:-1]) + '\n{"event": "sweep_fin')

    assert read_run(finished).state.value == "finished"
    (finished / "log.jsonl").unlink()
    assert read_run(finished).state.value == "finished"
    (finished / "recipe.json").unlink()
    assert read_run(finished).state.value == "ended early"


def change(path, **fields):
    content = json.loads(path.read_text())
    for name, value in fields.items():
        content[name] = value(content[name])
    path.write_text(json.dumps(content))


def test_a_recipe_that_says_other_than_its_trials_is_contradicted_by_them(finished):
    change(finished / "recipe.json", measurement=lambda old: old | {"step_s": 0.05})

    seen = read_run(finished)

    assert seen.doubts == (
        ALTERED,
        "recipe.json contradicts the run: measurement.step_s is 0.05 in recipe.json, 0.1 by its "
        "trials",
    )
    assert seen.recipe.measurement.step_s == 0.1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"certificate": lambda old: [old[0] | {"evidence": "proven"}]},
            "CP=1 is proven in recipe.json, measured by its trials",
        ),
        ({"certificate": lambda _: []}, "CP=1 is absent in recipe.json, measured by its trials"),
        (
            {"controls": lambda old: [old[0] | {"verdict": "slower"}]},
            f"{CP1.candidate.key} is slower in recipe.json, out_of_memory by its trials",
        ),
        (
            {"measurement": lambda old: old | {"capacity_bytes": 99}},
            f"measurement.capacity_bytes is 99 in recipe.json, {CAPACITY} by its trials",
        ),
        (
            {"fingerprints": lambda old: old | {"convergence": "x"}},
            "its convergence fingerprint is not that of its trials",
        ),
        ({"candidate_key": lambda _: CP1.candidate.key}, "of which no measured trial"),
        ({"measurement": lambda _: None}, "measurement is null in recipe.json"),
    ],
)
def test_a_recipe_whose_certificate_or_verdicts_were_changed_is_told(finished, fields, said):
    change(finished / "recipe.json", **fields)

    assert said in " ".join(doubts(finished))


def test_a_recipe_with_another_word_is_not_as_it_was_written(finished):
    change(finished / "recipe.json", commands=lambda _: ["another"])
    assert doubts(finished) == (ALTERED,)

    (finished / "recipes.parquet").write_bytes(b"PAR1")
    (said,) = doubts(finished)
    assert said.startswith("recipes.parquet cannot be read")


@pytest.mark.parametrize("lost", [True, False])
def test_a_proof_that_is_not_as_it_was_kept_is_told(finished, lost):
    if lost:
        (finished / "proofs" / f"{CP2.candidate.key}.json").unlink()
    else:
        checks = [{**PROOF.to_json()["checks"][0], "max_error": 1e-11}]
        change(finished / "recipe.json", equivalence=lambda old: old | {"checks": checks})

    *altered, said = doubts(finished)

    assert altered == ([] if lost else [ALTERED])
    assert f"its proof is not that of proofs/{CP2.candidate.key}.json" in said


def test_a_recipe_that_does_not_know_a_trial_is_told(finished):
    ParquetLedger(finished, writable=True).append(
        trial_of(replace(candidate(cp=2), kernel="other"), out_of_memory(), number=2)
    )

    (said,) = doubts(finished)

    assert said.endswith("it does not know tp1-cp2-pp1-dp1-mb1-zigzag-ring-st1-none-full-ddp-other")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": lambda _: 9}, "recipe.json is no recipe: schema is 9"),
        ({"candidate_key": lambda _: "other"}, "recipe.json names other, of which no measured"),
        (
            {"equivalence": lambda old: old | {"passed": False}},
            "recipe.json is no recipe: equivalence | says id",
        ),
        ({"certificate": lambda _: [{}]}, "recipe.json is no recipe: certificate[0]"),
        ({"controls": lambda _: 3}, "recipe.json is no recipe: "),
        (
            {"environment": lambda _: {"shared": "x"}},
            "recipe.json is no recipe: environment: ",
        ),
    ],
)
def test_a_recipe_that_cannot_be_believed_is_named_and_the_trials_speak(finished, fields, said):
    change(finished / "recipe.json", **fields)

    seen = read_run(finished)

    assert any(one.startswith(said) for one in seen.doubts)
    assert seen.recipe.candidate.key == CP2.candidate.key
    assert not seen.recipe_text


def test_files_that_hold_no_trial_are_named_and_hide_nothing(finished, capsys):
    (cut,) = (finished / "trials").glob("000000-*")
    cut.write_bytes(b"PAR1")
    (finished / "quarantine").mkdir()
    (finished / "quarantine" / "ranks-old.parquet").write_bytes(b"")

    assert run(["report", str(finished), "--format", "json"]) == 0

    told = " ".join(json.loads(capsys.readouterr().out)["doubts"])
    assert f"quarantined: trials/{cut.name}: cannot be read" in told
    assert "quarantined: ranks-old.parquet: set aside by the sweep" in told
    assert [trial.number for trial in read_run(finished).trials] == [1]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "topology.json is lost"), ("{", "topology.json is no topology: ")],
)
def test_a_lost_topology_is_said_and_promises_nothing(finished, text, said):
    path = finished / "topology.json"
    path.unlink() if text is None else path.write_text(text)

    seen = read_run(finished)

    assert seen.topology is None
    assert [one[: len(said)] for one in seen.doubts] == [said]


@pytest.mark.parametrize(("data", "said"), [(None, "No such file"), (b"{", "no gzip")])
def test_a_trace_that_is_lost_is_said_and_the_table_stays(finished, data, said):
    assert read_run(finished).trace["links"]
    (path,) = (finished / "traces").iterdir()
    path.unlink() if data is None else path.write_bytes(data)

    seen = read_run(finished)

    assert (seen.trace["links"], seen.trace["trace_file"]) == ([], None)
    assert seen.trace["communication"]
    assert str(path) in seen.doubts[0]
    assert said in seen.doubts[0]


def test_trials_of_another_objective_are_judged_by_the_spec(finished):
    """A mutant of the rule: what the spec forbids is not chosen."""
    strict = replace(SPEC, objective=Objective(exposed_comm_share=0.01))
    directory = write_run(
        finished.parent / "b",
        trials=(CP1, CP2),
        spec=strict,
        finished=False,
    )

    seen = read_run(directory)

    assert seen.recipe is None
    assert [one.word for one in seen.judged] == ["out_of_memory", "exposed"]


def test_a_sweep_whose_page_cannot_be_written_says_so_and_its_answer_stands(finished, monkeypatch):
    def lost(*_, **__):
        raise LedgerError("cannot write report.html: No space left on device")

    observer = RecordingObserver()
    monkeypatch.setattr("cptune.reporting.report.write_durably", lost)

    keep_report(finished, observer)

    (said,) = observer.notes
    assert said.startswith(f"{finished / 'report.html'} was not written: cannot write report.html")
    assert said.endswith(f"`cptune report {finished}` tries again")


def test_a_sweep_whose_page_can_be_written_says_nothing(finished):
    observer = RecordingObserver()

    keep_report(finished, observer)

    assert observer.notes == []
    assert (finished / "report.html").stat().st_size > 4_000_000
