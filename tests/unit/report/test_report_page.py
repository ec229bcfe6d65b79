"""The page of a run: every section, each figure with its table, and nothing loaded or run."""

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest
from fakes import (
    STAMP,
    candidate,
    devices,
    edge_report,
    failed,
    measured,
    out_of_memory,
    rank_trace,
    sweep_spec,
    trial_of,
)
from page_reading import Page

from cptune.domain.environment import RankEnvironment
from cptune.domain.memory import MemorySplit
from cptune.domain.placement import place
from cptune.domain.proof import Check, Proof
from cptune.domain.recipe import CertificateEntry, Control, Evidence, Recipe
from cptune.domain.timeline import ABLATION, Exposed
from cptune.domain.trial import Predicted
from cptune.report.doubts import doubts_of
from cptune.report.page import SECTIONS, run_page
from cptune.report.page_parts import places_by
from cptune.report.run import ReportedRun, RunState
from cptune.report.summary import Judged, recipe_lines, trial_cells
from cptune.report.trace import trace_answer
from topology.nouns import Node, Topology

AT = "2026-01-02T03:04:05.678+00:00"
EVIL = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">"
MIB = 1 << 20
SPLIT = MemorySplit(
    states_bytes=MIB,
    activations_bytes=5 * MIB,
    logits_bytes=2 * MIB,
    comm_bytes=16,
    transient_bytes=MIB // 2 - 16,
    optimizer_peak_bytes=MIB,
)
ABLATED = Exposed(
    axis="cp", layer=None, whole=True, method=ABLATION, communication_s=0.03, exposed_s=0.021
)


def chosen_measurement():
    trace = rank_trace()
    trace = replace(trace, exposed=(*trace.exposed, ABLATED))
    seen = measured(
        step_s=0.1,
        peak_bytes=17 * MIB // 2,
        trace=trace,
        memory=SPLIT,
    )
    ranks = (
        replace(one, edges=(edge_report(one.rank ^ 1, idle_s=0.001, busy_s=0.002),))
        for one in seen.ranks
    )
    return replace(seen, noisy=False, step_ci_share=0.02, ranks=tuple(ranks))


CHOSEN = replace(
    trial_of(candidate(cp=2, dp=2), chosen_measurement(), number=2),
    predicted=Predicted(
        step_s=0.08,
        peak_lo_bytes=7 * MIB,
        peak_bytes=8 * MIB,
        peak_hi_bytes=9 * MIB,
        model_version="2026.3",
    ),
)
OOM = trial_of(candidate(dp=4), out_of_memory(3 * MIB), number=0)
SLOW = trial_of(candidate(cp=4), measured(step_s=0.4, peak_bytes=4 * MIB), number=3)
CRASH = trial_of(candidate(tp=2, dp=2), failed(message=EVIL), number=1)
PROOF = Proof(
    candidate_key=CHOSEN.candidate.key,
    fixture="f" * 64,
    checks=(
        Check(name="causal: loss", max_error=1e-13, tolerance=1e-10),
        Check(name="causal: gradients", max_error=2e-12, tolerance=1e-10, where="layers.0.qkv"),
    ),
)
RECIPE = Recipe(
    spec=sweep_spec(),
    candidate=CHOSEN.candidate,
    placement=CHOSEN.placement,
    measurement=CHOSEN.measurement,
    predicted=CHOSEN.predicted,
    capacity_bytes=10 * MIB,
    certificate=(CertificateEntry(cp=1, reason="no layout fits", evidence=Evidence.MEASURED),),
    controls=(Control(candidate_key=OOM.candidate.key, cp=1, verdict="out_of_memory", reason="x"),),
    versions={"torch": "2.13.0"},
    fingerprints=STAMP.fingerprints,
    environment=RankEnvironment(
        shared={"OMP_NUM_THREADS": "1"}, differing={"NCCL_ALGO": {"node0": "Ring", "node1": None}}
    ),
    commands=("cptune sweep runs/a/spec.toml --name a-again",),
    proof=PROOF,
)
JUDGED = (
    Judged(trial=OOM, word="out_of_memory", reason=OOM.reason, is_nearest=True),
    Judged(trial=CRASH, word="crashed", reason=EVIL),
    Judged(trial=CHOSEN, word="chosen", reason="smallest CP that fits"),
    Judged(trial=SLOW, word="larger cp", reason="cp 2 does as well"),
)
TOPOLOGY = Topology(source="host", nodes=(Node(name="node0"),))


def reported(**changes):
    fields = {
        "directory": Path("runs/a"),
        "spec": RECIPE.spec,
        "state": RunState.FINISHED,
        "trials": (OOM, CRASH, CHOSEN, SLOW),
        "judged": JUDGED,
        "capacity_bytes": 10 * MIB,
        "recipe": RECIPE,
        "recipe_text": json.dumps(RECIPE.to_json(), indent=2),
        "topology": TOPOLOGY,
        "trace": trace_answer(CHOSEN, run="a", trace_file=None, spans={}),
        "spec_text": "name = 'a'",
    }
    return ReportedRun(**{**fields, **changes})


def evil_trace():
    trace = trace_answer(CHOSEN, run="a", trace_file=None, spans={})
    rows = [row | {"axis": EVIL} for row in trace["communication"]]
    return trace | {"communication": rows}


def page_of(run=None, *, script="var plotly;"):
    return Page(run_page(run or reported(), script=script, at=AT))


@pytest.fixture(scope="module")
def page():
    return page_of()


def test_it_is_html_with_every_section_behind_its_anchor(page):
    assert page.unbalanced == []
    assert page.text.lstrip().startswith("<!DOCTYPE html>")
    for section in SECTIONS:
        anchor = section(reported()).anchor
        assert f'href="#{anchor}"' in page.text
        assert page.sections[anchor].strip()


def test_what_speaks_against_it_stands_before_anything_else():
    text = page_of(reported(doubts=("a grave doubt",))).text

    assert text.index("a grave doubt") < text.index('id="recipe"')


def test_its_sentences_are_those_of_the_terminal(page):
    own = [f"candidate {RECIPE.candidate.key}", "chosen: smallest CP that fits"]
    for line in [*recipe_lines(RECIPE), *own]:
        assert line in page.sections["recipe"]


def test_a_figure_on_the_page_is_that_of_recipe_json(page):
    told = RECIPE.to_json()
    (row,) = (one for one in page.table("tokens/s", "verdict") if one["verdict"] == "chosen")

    assert row["step ms"] == f"{told['measurement']['step_s'] * 1e3:,.0f}"
    assert row["tokens/s"] == f"{told['measurement']['tokens_per_s']:,.0f}"
    assert row["exposed"] == f"{told['measurement']['exposed_share']:.1%}"
    (kept,) = (text for title, text in folded(page) if title == "recipe.json")
    assert json.loads(kept) == json.loads(json.dumps(told))
    (proof,) = (one for one in page.table("check", "tolerance") if one["where"])
    assert (proof["largest error"], proof["verdict"]) == ("2e-12", "passed")


def folded(page):
    pieces = page.text.split("<details><summary>")[1:]
    for piece in pieces:
        found = Page("<pre>" + piece.split("<pre>")[1].split("</pre>")[0] + "</pre>")
        text = []
        found.handle_data = text.append
        found.reset()
        found.feed(found.text)
        yield piece.split("<")[0], "".join(text)


def test_the_memory_of_each_candidate_is_split_and_of_one_that_failed_short(page):
    rows = {row["#"]: row for row in page.table("activations", "short by")}

    parts = [rows["2"][name] for name in ("states", "activations", "logits", "communication")]
    assert parts == ["1.00 MiB", "5.00 MiB", "2.00 MiB", "16 B"]
    assert (rows["2"]["peak"], rows["2"]["short by"]) == ("8.50 MiB", "-")
    assert (rows["0"]["peak"], rows["0"]["short by"]) == ("-", "3.00 MiB")
    assert "10.00 MiB; 9.20 MiB of it inside the margin of 8%" in page.sections["memory"]


def test_exposed_communication_names_its_methods_and_its_traced_step(page):
    rows = page.table("axis", "layer", "late ms")
    by_place = {(row["axis"], row["layer"]): row["exposed ms"] for row in rows}

    assert by_place["cp", "all"] == "20.0"
    assert (by_place["cp", "0"], by_place["cp", "1"]) == ("15.0", "5.0")
    text = page.sections["exposed"]
    assert "By ablation: step minus step without transfer" in text
    assert "one traced step of 100 ms, the last of warm-up, of trial 2 attempt 0" in text
    assert "interval-union" in text


def test_every_attempt_is_in_the_table_and_each_order_of_it_is_whole(page):
    rows = page.table("attempt", "key", "reason")

    assert [row["key"] for row in rows] == [one.candidate.key for one in reported().trials]
    assert rows[2]["step ms"] == trial_cells(JUDGED[2])[3]
    assert page.text.count('style="--o0:') == len(rows)
    assert page.text.count('type="radio"') == 6


def test_a_number_that_json_has_no_word_for_draws_no_mark():
    seen = replace(SLOW.measurement, tokens_per_s=float("inf"))
    judged = (*JUDGED[:3], replace(JUDGED[3], trial=replace(SLOW, outcome=seen)))

    page = page_of(reported(judged=judged))

    plots = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]
    rates = [point for one in plots[1]["data"] for point in one["y"]]
    assert None in rates


def test_what_has_no_figure_comes_last_in_an_order():
    assert places_by([3.0, None, 1.0]) == [1, 2, 0]
    assert places_by(["b", "a", "b"]) == [1, 0, 2]
    assert places_by([]) == []


def test_every_figure_says_input_configuration_and_window_and_has_a_table(page):
    figures = page.text.split("<figure ")[1:]

    assert len(figures) == 5
    for figure in figures:
        whole = figure.split("</figure>")[0]
        for word in ("input", "configuration", "window"):
            assert f"<b>{word}</b> " in whole
        assert "<table>" in whole


def test_the_drawn_numbers_are_figures_that_plotly_takes(page):
    plots = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]

    assert len(plots) == 4
    for plot in plots:
        go.Figure(plot)  # refuses a property that is none
    memory = next(plot for plot in plots if plot["layout"].get("barmode") == "stack")
    place_of = memory["data"][0]["x"].index("#2 cp2")
    parts = [bar["y"][place_of] or 0 for bar in memory["data"][:5]]
    unit = memory["layout"]["yaxis"]["title"]["text"]
    assert sum(parts) == pytest.approx({"MiB": 8.5}[unit])


def test_a_property_that_plotly_does_not_know_is_seen():
    with pytest.raises(ValueError, match="colour"):
        go.Figure({"data": [{"type": "bar", "colour": "red"}]})


@pytest.mark.parametrize(
    "changes",
    [
        {"doubts": (EVIL,)},
        {"quarantined": (EVIL,)},
        {"notes": (EVIL,)},
        {"spec_text": EVIL},
        {"recipe_text": EVIL},
        {"directory": Path(f"runs/{EVIL}")},
        {"recipe": replace(RECIPE, caveats=(EVIL,), versions={EVIL: EVIL})},
        {"state": RunState.ENDED, "state_note": EVIL},
        {"trace": evil_trace()},  # an axis is a label of a figure
        {
            "recipe": replace(
                RECIPE,
                placement=place(
                    RECIPE.candidate.layout,
                    [replace(one, node=EVIL) for one in devices(4)],
                ),
            )
        },
    ],
    ids=lambda changes: "-".join(changes),
)
def test_text_of_a_run_is_text_and_never_markup(changes):
    page = page_of(reported(**changes))

    assert page.unbalanced == []
    assert page.handlers == []
    assert page.loads == []
    assert [kind for kind, _ in page.scripts].count(None) == 2  # plotly.js, and what draws
    assert all("alert" not in text for kind, text in page.scripts if kind is None)
    for kind, text in page.scripts:
        if kind is not None:
            json.loads(text)  # it is whole


def test_markup_that_is_not_escaped_would_be_seen():
    page = Page(f"<html><section id='a'>{EVIL}</section></html>")

    assert page.handlers == ["onerror"]
    assert page.loads == ["x"]


def test_the_policy_lets_nothing_be_loaded_and_names_each_script(page):
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))

    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    scripts = [text for kind, text in page.scripts if kind is None]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in digests]
    assert page.loads == []
    for word in ("http:", "https:", "unsafe-eval"):
        assert word not in page.policy


def test_without_its_script_the_page_has_every_table():
    with_plots, without = page_of(), page_of(script="")

    assert without.tables == with_plots.tables
    assert without.scripts == []


def test_a_run_that_found_nothing_tells_the_nearest_miss():
    judged = tuple(one for one in JUDGED if one.word in ("out_of_memory", "crashed"))
    run = reported(judged=judged, recipe=None, recipe_text="", trace=None)

    page = page_of(run)

    assert "no candidate of 2 passed: 1 crashed, 1 out_of_memory" in page.text
    assert "nearest, tp1 cp1 dp4: out of memory" in page.sections["recipe"]
    assert "no recipe" in page.text


def test_a_run_before_its_first_trial_has_a_page():
    run = reported(
        state=RunState.RUNNING,
        state_note="the run is still going, by pid 1",
        trials=(),
        judged=(),
        recipe=None,
        recipe_text="",
        trace=None,
        topology=None,
        capacity_bytes=None,
    )

    page = page_of(run)

    assert page.unbalanced == []
    assert "no candidate was tried" in page.sections["recipe"]
    assert "the run is still going, by pid 1" in page.sections["doubts"]


def test_an_unfinished_recipe_is_one_so_far():
    page = page_of(reported(state=RunState.ENDED, state_note="it was ended early"))

    assert "Recipe so far" in page.sections["recipe"]
    assert "so far: TP=1 CP=2" in page.text


def test_doubts_name_what_is_open_unproven_noisy_or_caveat():
    entry = CertificateEntry(cp=1, reason="not ruled out", evidence=None)
    recipe = replace(
        RECIPE,
        certificate=(entry,),
        proof=None,
        measurement=replace(RECIPE.measurement, noisy=True),
        caveats=("a variable distorts",),
    )

    assert doubts_of(reported(recipe=recipe)) == [
        "not certified: CP=1 OPEN: not ruled out",
        "not proven: no proof against the unsharded model was kept",
        "the timing is noisy: 2 timed steps: median within 2.0% with 95%, noisy",
        "a variable distorts",
        "rejected on noisy timings: tp1 cp4 dp1 zigzag ring/3",
    ]
    assert doubts_of(reported(judged=())) == []


def test_a_proof_that_fails_is_told_with_its_check():
    wrong = replace(PROOF, checks=(Check(name="leak", max_error=0.5, tolerance=0.0),))

    page = page_of(reported(recipe=replace(RECIPE, proof=wrong)))

    assert "REFUTED: 1 of 1 checks fail, worst leak 0.5 (tolerance 0)" in page.sections["doubts"]
    (row,) = page.table("check", "tolerance")
    assert row["verdict"] == "FAILED"


def test_a_password_of_the_study_is_not_shown():
    spec = sweep_spec('[storage]\nstudy = "postgresql://me:hunter2@db/x"\n')

    assert "hunter2" not in page_of(reported(spec=spec)).text


def test_the_edges_stand_beside_what_is_promised_and_contended(page):
    row = page.table("promised", "beside others")[0]

    assert (row["at least"], row["promised"], row["kind"]) == ("512.00 kB/s", "?", "?")
    assert row["beside others"] == "2.00x"
    assert "promises no rate of these edges" in page.sections["rings"]
    assert "ring 0: 2 CPU processes" in page.text
