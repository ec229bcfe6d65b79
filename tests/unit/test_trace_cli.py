"""`cptune trace`: what it prints, and what it says of a wrong run, trial or attempt."""

import io
import json
from dataclasses import replace

import pytest
from fakes import candidate, edge_report, measured, out_of_memory, rank_report, rank_trace, trial_of
from rich.console import Console

from cptune.cli import run
from cptune.domain.outcome import measurement_from
from cptune.domain.timeline import ABLATION, Exposed, Span, SpanKind
from cptune.report.trace import trace_view
from cptune.store.ledger import ParquetLedger

CP2 = candidate(cp=2)


def message(start_s, stop_s, size, peer, name="keys"):
    return Span(
        kind=SpanKind.COMMUNICATION,
        name=name,
        start_s=start_s,
        stop_s=stop_s,
        axis="cp",
        bytes=size,
        peer=peer,
    )


def ablated(axis, communication_s, exposed_s):
    return Exposed(
        axis=axis,
        layer=None,
        whole=True,
        method=ABLATION,
        communication_s=communication_s,
        exposed_s=exposed_s,
    )


def traced(rank, ablation=()):
    spans = (
        message(0.00, 0.01, 1000, 1 - rank),
        message(0.02, 0.04, 1000, 1 - rank),
        message(0.05, 0.06, 1000, 1 - rank, name="keys, sent"),
    )
    trace = rank_trace(spans=spans)
    return rank_report(
        rank,
        edges=(edge_report(1 - rank, idle_s=0.2 if rank else None, busy_s=0.5),),
        trace=replace(trace, exposed=(*trace.exposed, *ablation)),
    )


@pytest.fixture
def runs(tmp_path):
    """A run with an untraced trial 1, a failed 2, and 4 whose second attempt was traced."""
    directory = tmp_path / "nightly"
    directory.mkdir()
    ledger = ParquetLedger(directory, writable=True)
    ablation = [ablated("cp", 0.035, 0.021)], [ablated("cp", 0.037, None)]
    outcome = measurement_from(
        tuple(traced(rank, ablation[rank]) for rank in range(2)), tokens_per_step=1
    )
    for trial in (
        trial_of(CP2, measured(ranks=2), number=1),
        trial_of(CP2, out_of_memory(), number=2),
        trial_of(CP2, out_of_memory(), number=4),
        trial_of(CP2, outcome, number=4, attempt=1),
    ):
        ledger.append(trial)
    return tmp_path


def answer_of(capsys, *arguments):
    assert run(["trace", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_total_and_exposed_by_axis_and_layer(runs, capsys):
    answer = answer_of(capsys, "nightly", "4", "--runs", str(runs))

    assert (answer["trial"], answer["attempt"]) == (4, 1)
    assert answer["trace_file"] == str(runs / "nightly" / "traces" / "4-1.json.gz")
    cp = {
        (row["layer"], row["whole_axis"]): (row["communication_s"], row["exposed_s"])
        for row in answer["communication"]
        if row["axis"] == "cp"
    }
    assert cp == {(None, True): (0.03, 0.02), (0, False): (0.02, 0.015), (1, False): (0.01, 0.005)}
    assert {row["axis"] for row in answer["communication"]} == {"cp", "dp"}  # no more moved


def test_what_one_rank_could_not_tell_is_unknown(runs, capsys):
    (row,) = answer_of(capsys, "nightly", "4", "--runs", str(runs))["ablation"]

    assert row["communication_s"] == pytest.approx(0.036)
    assert row["exposed_s"] is None


def test_a_busy_link_is_shown_beside_what_was_exposed(runs, capsys):
    first, _ = answer_of(capsys, "nightly", "4", "--runs", str(runs))["links"]

    assert (first["a_rank"], first["b_rank"], first["bytes"]) == (0, 1, 2000)
    assert first["transfer_s"] == pytest.approx(0.03)
    assert first["best_bytes_per_s"] == pytest.approx(1000 / 0.01)
    assert first["utilisation"] == pytest.approx(2 / 3)
    assert first["busy_share"] == pytest.approx(0.3)
    assert first["exposed_s"] == 0.02


def test_contention_is_busy_over_idle_and_unknown_without_either(runs, capsys):
    first, second = answer_of(capsys, "nightly", "4", "--runs", str(runs))["links"]

    assert (first["b_rank"], first["idle_s"], first["busy_s"]) == (1, 0.2, 0.5)
    assert first["contention"] == pytest.approx(2.5)
    assert (second["busy_s"], second["contention"]) == (0.5, None)


def test_the_table_says_unknown_and_where_the_trace_is(runs, capsys):
    assert run(["trace", str(runs / "nightly"), "4"]) == 0

    out = capsys.readouterr().out
    assert "By the union of intervals" in out
    assert "unknown" in out
    assert "utilisation is not overlap" in out
    assert f"{runs / 'nightly' / 'traces' / '4-1.json.gz'} (ui.perfetto.dev opens it)" in out


def test_a_line_under_a_table_explains_the_words_in_it_and_no_others(runs, capsys):
    assert run(["trace", str(runs / "nightly"), "4"]) == 0

    out = capsys.readouterr().out
    for word in ("hidden: under", "blocked ms: standing", "late ms: of it", "of its rate: MB/s"):
        assert out.count(word) == 1
    assert "world: " not in out
    assert "beside: " not in out


def test_rows_of_all_ranks_and_of_no_layer_are_explained():
    row = {"axis": "world", "layer": None, "whole_axis": False, "ranks": 2}
    row |= dict.fromkeys(("communication_s", "exposed_s", "blocked_s", "late_s", "bytes"), 0.0)
    answer = {"run": "r", "trial": 1, "attempt": 0, "candidate": "c", "step_s": 1.0}
    answer |= {"traced_step_s": 1.0, "exposed_share": 0.0, "clock_error_s": 0.0}
    answer |= {"communication": [row], "ablation": [], "links": [], "trace_file": None}
    out = Console(file=io.StringIO(), width=160)

    out.print(trace_view(answer))

    text = out.file.getvalue()
    assert "world: loss and gradient norm of all ranks; beside: of no layer; " in text
    assert "of its rate" not in text


def test_a_lost_trace_file_leaves_the_table(runs, capsys):
    (runs / "nightly" / "traces" / "4-1.json.gz").unlink()

    answer = answer_of(capsys, "nightly", "4", "--runs", str(runs))

    assert (answer["trace_file"], answer["links"]) == (None, [])
    assert answer["communication"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nigthly", "4"], "no run 'nigthly' in {runs}, did you mean 'nightly'?"),
        (["nightly", "3"], "no trial 3 in this run; nearest: 2"),
        (["nightly", "99"], "no trial 99 in this run; nearest: 4"),
        (["nightly", "4", "--attempt", "7"], "trial 4 has no attempt 7; nearest: 1"),
        (["nightly", "four"], "four"),
    ],
)
def test_what_is_not_there_exits_2_with_the_nearest(runs, capsys, arguments, said):
    assert run(["trace", *arguments, "--runs", str(runs)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert said.format(runs=runs) in err


def test_no_run_at_all_exits_2(tmp_path, capsys):
    assert run(["trace", "nightly", "0", "--runs", str(tmp_path / "none")]) == 2
    assert "no run 'nightly' in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nightly", "1"], "no step of trial 1 was traced"),
        (["nightly", "2"], "trial 2 ended out_of_memory: no step of it was traced"),
        (["nightly", "4", "--attempt", "0"], "trial 4 ended out_of_memory"),
    ],
)
def test_a_trial_without_a_traced_step_exits_1(runs, capsys, arguments, said):
    assert run(["trace", *arguments, "--runs", str(runs)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("table", ["trials", "ranks", "exposures"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_trial_of_which_a_file_is_lost_exits_1_and_names_it(runs, capsys, table, cut):
    (path,) = (runs / "nightly" / table).glob("000004-*-a1.parquet")
    if cut or table == "trials":  # without its row there is no such trial
        path.write_bytes(b"PAR1")
    else:
        path.unlink()

    assert run(["trace", "nightly", "4", "--runs", str(runs)]) == 1
    assert f"trial 4 cannot be read whole: {table}/{path.name}: " in capsys.readouterr().err
