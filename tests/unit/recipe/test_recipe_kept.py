"""A recipe read back is the recipe that was written; one that was edited is refused by place."""

import json
from dataclasses import replace

import pytest
from fakes import edge_report, measured, rank_trace
from recipe_cases import CP2, content_of, edited, proof_of, recipe_of, written

from cptune.cli import run
from cptune.domain.depth import Depth
from cptune.domain.memory import MemorySplit
from cptune.domain.seal import DIGESTS, sealed, why_broken
from cptune.errors import SpecError
from cptune.kept import read_recipe
from cptune.report.summary import recipe_sections

SPLIT = MemorySplit(
    states_bytes=1,
    activations_bytes=2,
    logits_bytes=3,
    comm_bytes=4,
    transient_bytes=5,
    optimizer_peak_bytes=6,
)
DEPTH = Depth(
    layers_measured=(1, 2), step_lo_s=0.1, step_hi_s=0.2, peak_lo_bytes=1, peak_hi_bytes=2, layers=4
)
TRACED = measured(trace=rank_trace(), edges=(edge_report(1),), memory=SPLIT, ranks=4)


@pytest.mark.parametrize(
    "recipe",
    [
        recipe_of(),
        recipe_of(predicted=None, proof=None, certificate=(), run_id=None),
        recipe_of(measurement=replace(TRACED, depth=DEPTH)),
        recipe_of(proof=proof_of(CP2, checks=(), why_missing="rank 1 is gone")),
    ],
)
def test_what_is_read_says_all_that_was_written(recipe, tmp_path):
    kept = read_recipe(written(tmp_path, content_of(recipe)))

    assert content_of(kept.recipe) == content_of(recipe) == kept.content
    assert recipe_sections(kept.recipe) == recipe_sections(recipe)


def test_show_prints_what_the_sweep_printed_and_json_is_the_file(tmp_path, capsys):
    recipe = recipe_of(measurement=TRACED)
    path = written(tmp_path, content_of(recipe))

    assert run(["recipe", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert run(["recipe", "show", str(path), "--format", "json"]) == 0

    for title, lines in recipe_sections(recipe):
        assert title in shown
        assert all(line in shown for line in lines)
    assert "caveat: the ranks ran with X=1" in shown
    assert "CP=1 measured: no room" in shown
    assert json.loads(capsys.readouterr().out) == content_of(recipe)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("measurement.first_loss", 5.25),
        ("workload.seq_len", 128),
        ("layout.cp", 4),
        ("certificate.0.reason", "another"),
        ("commands", []),
        ("run.seed", 3),
        ("digests.mesh", "0" * 16),
    ],
)
def test_an_edit_is_refused_with_its_part(path, value, tmp_path):
    content = edited(content_of(recipe_of()), path, value, seal=False)
    part = "mesh" if path.startswith(DIGESTS) else path.split(".")[0]

    with pytest.raises(SpecError, match=rf"recipe\.json: {part} \| edited after it was written"):
        read_recipe(written(tmp_path, content))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("candidate_key", "tp8", "candidate_key"),
        ("layout.accumulation", 7, "layout.accumulation"),
        ("layout.tp", 2, "mesh"),
        ("layout.tp", "2", "tp"),
        ("layout.strategy", "rings", "rings"),
        ("mesh.3.cp", 0, "mesh[3].cp"),
        ("certified", False, "certified"),
        ("prediction.step_error", 0.0, "prediction.step_error"),
        ("measurement.exposed_share", 0.5, "measurement.exposed_share"),
        ("measurement.step_s", "fast", "measurement.step_s"),
        ("measurement.step_s", None, "measurement.step_s"),
        ("measurement.capacity_bytes", 1.5, "measurement.capacity_bytes"),
        ("certificate.0.evidence", "sworn", "certificate[0].evidence"),
        ("controls.0.cp", "1", "controls[0].cp"),
        ("equivalence.candidate", "tp8", "equivalence"),
        ("equivalence.passed", False, "equivalence"),
        ("workload.seq_len", "64", "workload.seq_len"),
        ("workload.model.heads", 7, "heads"),
        ("workload.color", "red", "workload.color"),
        ("run.budget.trials", 0, "trials"),
        ("run.cluster.gpus", 8, "cluster.gpus"),
        ("versions", [], "versions"),
        ("fingerprints.topology", None, "fingerprints.topology"),
        ("environment.shared", 1, "environment.shared"),
    ],
)
def test_what_contradicts_the_rest_is_refused_even_under_new_digests(path, value, place, tmp_path):
    content = edited(content_of(recipe_of()), path, value, seal=True)

    with pytest.raises(SpecError) as caught:
        read_recipe(written(tmp_path, content))

    assert place in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["measurement", "layout", "mesh", "fingerprints"])
def test_a_part_that_is_missing_is_named(name, tmp_path):
    content = content_of(recipe_of())
    del content[name]

    with pytest.raises(SpecError, match=rf"{name} (\| |is )missing"):
        read_recipe(written(tmp_path, content))


def test_an_older_file_is_read_without_what_came_later(tmp_path, capsys):
    content = content_of(recipe_of())
    for name in ("run", "caveats", "environment", "equivalence", "expectation", DIGESTS):
        del content[name]
    for name in ("steps_s", "batch_hash", "cross_checked"):
        del content["measurement"][name]
    path = written(tmp_path, content)

    assert run(["recipe", "show", str(path)]) == 0
    assert "timed steps, how many was not kept" in capsys.readouterr().out
    with pytest.raises(SpecError, match=r"color \| unknown"):
        read_recipe(written(tmp_path, content | {"color": "red"}))


def test_a_part_of_a_later_version_is_no_edit(tmp_path):
    later = sealed({**recipe_of()._content(), "color": "red"})

    assert read_recipe(written(tmp_path, later)).content["color"] == "red"
    assert why_broken({**recipe_of().to_json(), "color": "red"}) == [
        "color | added after it was written"
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", "NaN", '{"schema": 1, "mesh": [], "x": NaN}'])
@pytest.mark.parametrize("command", [["show"], ["export", "--to", "megatron"]])
def test_what_is_no_recipe_ends_with_two(text, command, tmp_path, capsys):
    path = written(tmp_path, text)

    assert run(["recipe", *command, str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_run_directory_stands_for_its_recipe(tmp_path, capsys):
    path = written(tmp_path, content_of(recipe_of()))

    assert read_recipe(path.parent).path == path == tmp_path / "recipe.json"
    assert run(["recipe", "show", str(tmp_path / "none")]) == 2
    assert f"cannot read {tmp_path / 'none'}" in capsys.readouterr().err


def test_digests_that_are_no_table_are_no_older_file(tmp_path):
    with pytest.raises(SpecError, match=r"digests \| no table"):
        read_recipe(written(tmp_path, content_of(recipe_of()) | {DIGESTS: None}))


def test_no_terminal_obeys_what_a_file_says(tmp_path, capsys):
    path = written(tmp_path, content_of(recipe_of(caveats=("red \x1b[31m",))))

    assert run(["recipe", "show", str(path)]) == 0
    assert "caveat: red \\x1b[31m" in capsys.readouterr().out
