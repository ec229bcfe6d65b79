"""The sentences of a finished sweep, and what is said while it runs."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import (
    STAMP,
    RecordingObserver,
    candidate,
    failed,
    measured,
    out_of_memory,
    rank_trace,
    sweep_spec,
    trial_of,
)
from rich.console import Console

from cptune.domain.depth import Depth
from cptune.domain.memory import MemorySplit
from cptune.domain.recipe import CertificateEntry, Evidence, Recipe
from cptune.domain.study import Storage
from cptune.domain.timeline import ABLATION, Exposed
from cptune.domain.trial import Predicted
from cptune.logs import EventLog
from cptune.report.observers import Logged, Terminal
from cptune.report.summary import (
    Judged,
    again_line,
    certificate_lines,
    control_lines,
    nothing_fits_lines,
    recipe_lines,
    trial_cells,
    where_lines,
)
from cptune.report.tables import section, trials_table

CP2 = trial_of(
    candidate(cp=2, dp=2), measured(step_s=0.5, peak_bytes=3 << 19, exposed_share=0.25), number=12
)
OOM = trial_of(candidate(dp=4), out_of_memory(300), number=3)
FAR_OOM = trial_of(candidate(tp=2, dp=2), out_of_memory(3000), number=4)
CRASH = trial_of(candidate(tp=4), failed(message="a [red]bug[/red]"), number=5)
RECIPE = Recipe(
    spec=sweep_spec(),
    candidate=CP2.candidate,
    placement=CP2.placement,
    measurement=CP2.measurement,
    predicted=None,
    capacity_bytes=2 << 20,
    certificate=(
        CertificateEntry(cp=1, reason="did not fit", evidence=Evidence.MEASURED),
        CertificateEntry(cp=3, reason="not ruled out", evidence=None),
    ),
    controls=(),
    versions={},
    fingerprints=STAMP.fingerprints,
    commands=(),
)


def judged(trial, word="chosen", reason="why"):
    return Judged(trial=trial, word=word, reason=reason)


def test_the_figure_of_the_ablation_stands_below_that_of_the_intervals():
    def row(axis, exposed_s):
        return Exposed(
            axis=axis,
            layer=None,
            whole=True,
            method=ABLATION,
            communication_s=None,
            exposed_s=exposed_s,
        )

    trace = rank_trace()
    trace = replace(trace, exposed=(*trace.exposed, row("cp", 0.018), row("dp", None)))
    recipe = replace(RECIPE, measurement=measured(trace=trace))

    assert "by ablation: cp 18.0, dp unknown ms" in recipe_lines(recipe)
    assert recipe.to_json()["measurement"]["exposures"][:2] == [
        {
            "axis": "cp",
            "method": "interval-union",
            "communication_s": pytest.approx(0.03),
            "exposed_s": pytest.approx(0.02),
        },
        {
            "axis": "cp",
            "method": "ablation",
            "communication_s": None,
            "exposed_s": pytest.approx(0.018),
        },
    ]
    plain = replace(RECIPE, measurement=measured(trace=rank_trace()))
    assert not any("ablation" in line for line in recipe_lines(plain))
    assert plain.to_json()["measurement"]["exposures"][1]["exposed_s"] is None


def test_a_row_of_the_table():
    assert trial_cells(judged(CP2)) == (
        "12",
        "tp1 cp2 dp2 zigzag ring/1",
        "chosen",
        "~500",
        "512",
        "1.50 MiB",
        "25.0%",
    )
    assert trial_cells(judged(OOM, "out_of_memory")) == (
        *("3", "tp1 cp1 dp4", "out_of_memory"),
        *("-", "-", "-", "-"),
    )


def test_a_steady_timing_is_not_marked():
    steady = replace(CP2, outcome=replace(CP2.measurement, noisy=False, step_ci_share=0.021))

    assert trial_cells(judged(steady))[3] == "500"
    assert trials_table([judged(steady)]).title == "Trials"
    assert trials_table([judged(CP2)]).title == "Trials (~ noisy timing)"
    recipe = replace(RECIPE, measurement=steady.measurement)
    assert recipe_lines(recipe)[4] == "2 timed steps: median within 2.1% with 95%"


def test_the_chosen_one_needs_no_excuse():
    assert control_lines([judged(CP2), judged(OOM, "out_of_memory", "too much")]) == ["#3 too much"]


def test_the_recipe_in_words():
    assert recipe_lines(RECIPE) == [
        "TP=1 CP=2 PP=1 DP=2 on 4 ranks, zigzag ring in 1 stage",
        "micro-batch 1 x 2 passes, global batch 4 x 64 tokens",
        "recompute none, full loss, data parallel ddp",
        "512 tokens/s, step 500 ms (p10 500, p90 500)",
        "2 timed steps: too few for an interval, noisy",
        "peak 1.50 MiB of 2.00 MiB (1.84 MiB inside the margin); forward 600 B, backward 700 B",
        "exposed communication 25.0% of the step: tp 0.0, cp 125.0, dp 0.0, pp 0.0 ms "
        "(blocked-in-wait)",
        "attention kernel eager",
    ]


def test_the_prediction_stands_beside_what_was_measured():
    expected = Predicted(
        step_s=0.4, peak_lo_bytes=1, peak_bytes=1 << 20, peak_hi_bytes=1 << 22, model_version="1"
    )

    lines = recipe_lines(replace(RECIPE, predicted=expected))

    assert lines[-1] == "predicted 400 ms (+25% measured) and 1.00 MiB (+50%), model 1"
    assert RECIPE.to_json()["prediction"] == {}


def test_the_peak_is_told_by_its_parts():
    split = MemorySplit(
        states_bytes=1 << 20,
        activations_bytes=2 << 20,
        logits_bytes=3 << 20,
        comm_bytes=4 << 10,
        transient_bytes=5,
        optimizer_peak_bytes=6 << 20,
    )
    lines = recipe_lines(replace(RECIPE, measurement=replace(CP2.measurement, memory=split)))

    assert lines[6] == (
        "at the peak: states 1.00 MiB, activations 2.00 MiB, logits 3.00 MiB, communication "
        "4.00 KiB, transient 5 B; optimizer's own peak 6.00 MiB"
    )


def test_a_figure_drawn_from_two_depths_says_so_in_the_table():
    depth = Depth(
        layers_measured=(2, 4), step_lo_s=0.4, step_hi_s=0.6, peak_lo_bytes=1, peak_hi_bytes=2
    )
    drawn = replace(CP2, outcome=replace(CP2.measurement, depth=depth))

    cells = trial_cells(Judged(trial=drawn, word="chosen", reason=""))

    assert cells[1].endswith(" (from 2 and 4 layers)")
    assert cells[3].endswith("500 (400-600)")
    assert not trial_cells(Judged(trial=CP2, word="chosen", reason=""))[1].endswith("layers)")


def test_without_cp_there_is_no_exchange_to_name():
    alone = replace(RECIPE, candidate=candidate(dp=4))

    assert recipe_lines(alone)[0] == "TP=1 CP=1 PP=1 DP=4 on 4 ranks"
    assert certificate_lines(alone) == ["CP=1 is the smallest there is"]


def test_the_certificate_says_what_is_open():
    assert certificate_lines(RECIPE) == ["CP=1 measured: did not fit", "CP=3 OPEN: not ruled out"]
    assert not RECIPE.is_certified
    assert replace(RECIPE, certificate=RECIPE.certificate[:1]).is_certified


def test_nothing_fits_gives_the_tally_and_the_nearest_miss():
    lines = nothing_fits_lines(
        [
            judged(CRASH, "crashed", "a bug"),
            replace(judged(OOM, "out_of_memory", "300 short"), is_nearest=True),
            judged(FAR_OOM, "out_of_memory", "3000 short"),
        ]
    )

    assert lines == [
        "no candidate of 3 passed: 1 crashed, 2 out_of_memory",
        "nearest, tp1 cp1 dp4: 300 short",
    ]


def test_nothing_fits_without_a_near_miss():
    assert nothing_fits_lines([]) == ["no candidate was tried"]
    assert nothing_fits_lines([judged(CRASH, "crashed")]) == ["no candidate of 1 passed: 1 crashed"]


def test_the_next_commands_name_the_run():
    lines = where_lines(Path("runs/a"), has_recipe=True, program=lambda name: f".venv/bin/{name}")

    assert lines[0] == "recipe    runs/a/recipe.json"
    assert lines[1].startswith("trials    runs/a/trials/*.parquet")
    assert lines[2].startswith("study     .venv/bin/optuna-dashboard 'sqlite:///file:")
    assert lines[2].endswith("runs/a/study.db?mode=ro&uri=true'")
    again = "again     .venv/bin/cptune sweep runs/a/spec.toml --runs runs --name a-again"
    assert again_line(Path("runs/a"), program=lambda name: f".venv/bin/{name}") == again
    simulated = again_line(Path("a b/c"), program=str, flags=("--table", "x y.csv"))
    assert simulated.endswith("--name c-again --table 'x y.csv'")


def test_without_a_recipe_none_is_named():
    lines = where_lines(Path("runs/a"), has_recipe=False, program=str)

    assert not any("recipe.json" in line for line in lines)
    assert not any("report.html" in line for line in lines)


def test_the_page_is_named_where_it_was_written():
    lines = where_lines(Path("runs/a"), has_recipe=True, program=str, has_page=True)

    assert lines[1] == "page      runs/a/report.html"


def test_the_table_prints_every_word_as_it_is():
    out = Console(file=io.StringIO(), width=160)

    out.print(trials_table([judged(CP2), judged(CRASH, "crashed")]))
    out.print(section("Why not", ["#5 a [red]bug[/red]"]))

    text = out.file.getvalue()
    assert "tp1 cp2 dp2 zigzag ring/1" in text
    assert "  #5 a [red]bug[/red]\n" in text


def test_without_a_terminal_there_are_plain_lines_on_stderr(capsys):
    terminal = Terminal()
    terminal.trial_started(CP2.candidate, done=0, total=2)
    terminal.trial_finished(OOM, best=None)
    terminal.trial_finished(CP2, best=CP2)
    terminal.note("a [note]")
    terminal.close()

    out, err = capsys.readouterr()
    words = " ".join(err.split())
    assert out == ""
    assert "trial 3 tp1 cp1 dp4 out_of_memory: out of memory in forward" in words
    assert "no candidate passes yet" in words
    assert "500 ms 512 tokens/s peak 1.50 MiB exposed 25.0%" in words
    assert "recipe so far tp1 cp2 dp2 zigzag ring/1 512 tokens/s" in words
    assert "note: a [note]" in words


@pytest.mark.parametrize("best", [None, CP2])
def test_the_log_keeps_every_event_and_passes_it_on(tmp_path, best):
    inner, log = RecordingObserver(), EventLog(tmp_path / "log.jsonl")
    logged = Logged(inner, log)

    logged.trial_started(CP2.candidate, done=1, total=3)
    logged.trial_finished(OOM, best=best)
    logged.note("hello")
    log.close()

    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event.pop("event") for event in events] == ["trial_started", "trial_finished", "note"]
    assert all(event.pop("at") for event in events)
    assert events[0] == {"candidate_key": CP2.candidate.key, "done": 1, "total": 3}
    assert events[1]["outcome"] == "out_of_memory"
    assert events[1]["best"] == (best and best.candidate.key)
    assert inner.started == [(CP2.candidate.key, 1, 3)]
    assert inner.finished == [(OOM, best)]
    assert inner.notes == ["hello"]


def test_the_log_of_a_resumed_run_goes_on(tmp_path):
    for name in ("first", "second"):
        log = EventLog(tmp_path / "log.jsonl")
        log.write(name, path=tmp_path)
        log.close()

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["first", "second"]


@pytest.mark.parametrize(
    ("study", "wanted"),
    [
        ("journal", "study     optuna-dashboard '{here}/study.journal'"),
        ("postgresql://a:secret@h/db", "study     optuna-dashboard 'postgresql://a:***@h/db'"),
    ],
)
def test_the_dashboard_is_given_the_study_where_it_is_and_no_password(tmp_path, study, wanted):
    lines = where_lines(tmp_path, has_recipe=False, program=str, storage=Storage(study=study))

    assert wanted.format(here=tmp_path.resolve()) in lines
