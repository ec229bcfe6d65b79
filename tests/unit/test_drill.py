"""`cptune drill` without ranks: what it refuses and prints, and that no drill passes by itself."""

import json
import pkgutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fakes import failed, measured, out_of_memory

from cptune import spec as specs
from cptune.bench import trace
from cptune.bench.timeline import Exposure, seconds, union
from cptune.cli import run
from cptune.domain.outcome import OutcomeKind
from cptune.drills import lost, silent
from cptune.drills import run as drill_run
from cptune.drills.finding import Drill, Finding
from cptune.drills.registry import DRILLS, find_drills
from cptune.errors import SpecError
from cptune.search import choose
from cptune.store.ledger import ParquetLedger
from jobs.drill import main

PURE = ["changed-spec", "busy-link", "local-win", "torn-ledger"]
#: Of the method, each with a failure to provoke.
SECTIONS = {
    "memory curve",
    "topology",
    "smallest degree",
    "equivalence",
    "padding",
    "exposed communication",
    "other axes",
    "versioning",
}


def drilled(capsys, *words):
    """(exit code, the drills) of `cptune drill WORDS --format json`."""
    code = run(["drill", *words, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)["drills"]


def test_every_section_of_the_method_has_a_drill_and_every_name_is_one_drill():
    assert {one.section for one in DRILLS} >= SECTIONS
    assert len({one.name for one in DRILLS}) == len(DRILLS)


@pytest.mark.parametrize("one", DRILLS, ids=lambda one: one.name)
def test_the_guard_that_a_drill_names_is_there(one):
    for path in one.guard.split(" and "):
        found = pkgutil.resolve_name(path)
        assert callable(found) or isinstance(found, property)


def test_a_refusal_whose_control_does_not_hold_catches_nothing():
    found = Finding(refused=True, said="no", controls={"it passes without": True}, figures={})
    assert found.caught
    assert not replace(found, refused=False).caught
    assert not replace(found, controls={"it passes without": True, "and fits": False}).caught


def test_without_ranks_failures_are_caught_with_the_words_of_their_guards(capsys):
    code, drills = drilled(capsys, ",".join(PURE))

    assert (code, [one["name"] for one in drills]) == (0, PURE)
    assert all(one["caught"] for one in drills)
    said = {one["name"]: one["evidence"]["said"] for one in drills}
    assert said["busy-link"].startswith("exposed: exposed communication 76.0% of the step")
    assert "33.3% below the best" in said["local-win"]
    assert said["torn-ledger"].count("quarantined trials/") == 2
    assert "axes.recompute" in said["changed-spec"]
    busy = drills[1]["evidence"]["figures"]
    assert busy["busy_share"] == pytest.approx(0.95)
    assert busy["exposed_share_hidden"] == pytest.approx(0.0)


def hides_all(*, compute, communication):
    """Whatever moves is taken for hidden, as a counter of the link would have it."""
    del compute
    moved = seconds(union(communication))
    return Exposure(communication_s=moved, overlap_s=moved)


@pytest.mark.parametrize(
    ("name", "owner", "guard", "blind"),
    [
        ("busy-link", trace, "exposure", hides_all),
        ("changed-spec", specs, "spec_changes", lambda *_: []),
        ("changed-spec", specs, "spec_changes", lambda *_: ["axes.recompute changed"]),
        ("local-win", choose, "_slack", lambda verdict, *_: verdict),
        ("torn-ledger", ParquetLedger, "_is_of_run", lambda *_: True),
        ("torn-ledger", ParquetLedger, "_quarantine", lambda *_, **__: None),
    ],
)
def test_without_its_guard_a_failure_is_missed_and_the_command_ends_with_1(
    monkeypatch, capsys, name, owner, guard, blind
):
    monkeypatch.setattr(owner, guard, blind)

    code = run(["drill", name])

    out, err = capsys.readouterr()
    assert code == 1
    assert "MISSED" in out
    assert f"MISSED: {name}\n0 of 1 failures caught\n" in err


def test_a_control_that_does_not_hold_is_told(monkeypatch, capsys):
    monkeypatch.setattr(
        choose, "_slack", lambda verdict, *_: replace(verdict, ruling=choose.Ruling.SLOWER)
    )

    assert run(["drill", "local-win"]) == 1

    assert "the control does not hold: without its bubble it is chosen" in capsys.readouterr().out


def trials(**changes):
    """What the ranks of the memory drills give when all is well, with some of it changed."""
    fields = {
        "other": measured(sample_hash="1", peak_bytes=400),
        "ample": measured(sample_hash="1", peak_bytes=900),
        "recomputed": measured(sample_hash="1", peak_bytes=500),
        "halved": measured(sample_hash="2", peak_bytes=500),
        "tight": out_of_memory(),
    }
    return silent.Trials(**fields | changes)


def test_out_of_memory_counts_as_caught_only_with_what_was_short():
    assert silent.judge_shortage(trials(tight=out_of_memory(300))).figures["short_bytes"] == 300
    crashed = failed(OutcomeKind.CRASHED)
    assert not silent.judge_shortage(trials(tight=crashed)).refused
    assert not silent.judge_shortage(trials(tight=replace(out_of_memory(), shortage=None))).refused


def test_a_target_that_would_fit_anyway_shows_nothing():
    found = silent.judge_batch(trials(tight=measured(sample_hash="1")))
    assert found.controls["without it the target runs out of memory"] is False


def test_a_killed_rank_is_caught_only_by_its_number_and_with_a_search_that_goes_on():
    died = failed(OutcomeKind.CRASHED)
    after = measured()
    assert lost.judge(lost.Trials(lost=replace(died, rank=2), after=after)).caught
    assert not lost.judge(lost.Trials(lost=died, after=after)).caught
    assert not lost.judge(lost.Trials(lost=replace(died, rank=2), after=died)).caught


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slow-egde"], "no drill 'slow-egde', did you mean 'slow-edge'?"),
        (["local-win,nope"], "no drill 'nope'; nearest legal: "),
        ([""], "no drill ''"),
        (["local-win", "--list"], "--list shows all drills"),
    ],
)
def test_wrong_input_ends_with_2_before_anything_is_provoked(capsys, words, said):
    assert run(["drill", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_every_unknown_name_is_told():
    with pytest.raises(SpecError, match=r"no drill 'a.*\n?.*no drill 'b"):
        find_drills(["a1", "b2"])


def test_the_list_shows_every_drill_and_asks_for_no_heavy_library():
    code = (
        "import sys\nfrom cptune.cli import run\n"
        "assert run(['drill', '--list', '--format', 'json']) == 0\n"
        "assert not {'torch', 'ray'} & {*sys.modules}\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    drills = json.loads(ran.stdout)["drills"]
    assert [one["name"] for one in drills] == [one.name for one in DRILLS]
    assert {*drills[0]} == {"name", "section", "failure", "guard"}


def test_drills_of_one_failure_provoke_it_once_and_what_ends_the_ranks_comes_last(monkeypatch):
    """The answer has them in the order that they were asked for."""
    told = []

    def provoke(name):
        return lambda ranks: told.append(f"{name} on {ranks}")

    def judge(_):
        return Finding(refused=True, said="", controls={}, figures={})

    ends, stays = provoke("ends"), provoke("stays")
    given = {"section": "", "failure": "", "guard": "", "judge": judge}
    drills = [
        Drill(name="a", provoke=ends, comes_last=True, **given),
        Drill(name="b", provoke=stays, **given),
        Drill(name="c", provoke=ends, comes_last=True, **given),
        Drill(name="d", **given),
    ]
    monkeypatch.setattr(drill_run, "_started", lambda address: nullcontext(f"ranks of {address}"))
    order = []
    done = drill_run.run_drills(
        drills, address="x", on_drilled=lambda one: order.append(one.drill.name)
    )
    assert told == ["stays on ranks of x", "ends on ranks of x"]
    assert order == ["d", "b", "a", "c"]
    assert [one.drill.name for one in done] == ["a", "b", "c", "d"]


def test_the_job_is_the_command(monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["local-win"]) == 0
    assert "1 of 1 failures caught" in capsys.readouterr().err
