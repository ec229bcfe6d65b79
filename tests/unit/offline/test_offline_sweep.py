"""A sweep in which nothing runs leaves a whole run directory, and nobody takes it for measured."""

import json

import pyarrow.parquet as pq
import pytest
from fakes import STAMP, RecordingObserver, sweep_spec
from replay_tables import ROWS, row, write_csv

from cptune.cli import run
from cptune.domain.launcher import LauncherName
from cptune.errors import SpecError
from cptune.offline.replay import read_landscapes
from cptune.offline.sweep import OfflineAsked, run_offline
from cptune.search.prepare import refuse_other_launcher
from cptune.spec import parse, write_toml
from cptune.store.launcher import RAY, settle_launcher
from cptune.store.ledger import ParquetLedger

ROOFLINE = OfflineAsked(launcher=LauncherName.ROOFLINE, noise=0.02)
CPU = '[cluster]\nworld_size = 4\ngpu = "cpu"\ndevice_memory_bytes = {}\n'
TABLES = (
    "[objective]\nexposed_comm_share = 0.95\nthroughput_slack = 0.95\n"
    '[storage]\nstudy = "journal"\n'
)
AXES = "[axes]\ntp = [1]\npp = [1]\nmicro_batch = [1]\n"
TEXT = CPU.format(2_450_000) + AXES + TABLES
SPEC = sweep_spec(TEXT)  # predicted: cp 1 does not fit, cp 2 does


def sweep(tmp_path, spec=SPEC, asked=ROOFLINE, **options):
    return run_offline(spec, asked, runs=tmp_path, observer=RecordingObserver(), **options)


def replay_spec(text=""):
    """The workload of the hand-made table, with its axes."""
    model = "[model]\n" + "\n".join(
        f"{name} = {ROWS[0][name]}"
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    )
    batch = '[workload]\nseq_len = 64\nglobal_batch_seqs = 4\nprecision = "fp32"\n'
    axes = '[axes]\npp = [1]\nmicro_batch = [1]\nstrategy = ["ring"]\n'
    cluster = CPU.format(2_600_000)
    return parse(
        "\n".join([model, batch, cluster, axes, TABLES, text]), source="t", default_name="t"
    )


@pytest.fixture
def table(tmp_path):
    rows = [{**one, "peak_bytes": one.get("peak_bytes", 1_000_000)} for one in ROWS]
    return write_csv(tmp_path / "table.csv", rows)


def replay(table, noise=0.0):
    return OfflineAsked(launcher=LauncherName.REPLAY, table=table, noise=noise)


def test_the_recipe_is_predicted_and_says_so(tmp_path):
    done = sweep(tmp_path)
    recipe = json.loads((done.directory / "recipe.json").read_text())
    assert (recipe["launcher"], recipe["measurement"], recipe["certified"]) == (
        "roofline",
        {},
        False,
    )
    assert recipe["simulation"]["step_s"] > 0
    assert recipe["caveats"][0].startswith("PREDICTED, not measured")
    assert recipe["equivalence"] is None
    assert "--launcher roofline" in recipe["commands"][0]
    assert recipe["layout"]["cp"] == 2
    assert {one["evidence"] for one in recipe["certificate"]} == {"predicted"}


def test_every_row_says_who_answered(tmp_path):
    done = sweep(tmp_path)
    kept = ParquetLedger(done.directory, writable=False).read()
    assert kept == list(done.trials)
    rows = [pq.read_table(path).to_pylist()[0] for path in (done.directory / "trials").iterdir()]
    assert {one["launcher"] for one in rows} == {"roofline"}
    assert {one["outcome"] for one in rows} >= {"predicted", "out_of_memory"}
    assert "measured" not in {one["outcome"] for one in rows}
    (row,) = pq.read_table(done.directory / "recipes.parquet").to_pylist()
    assert (row["launcher"], row["certified"]) == ("roofline", False)
    names = {path.name for path in done.directory.iterdir()}
    assert names >= {"spec.toml", "topology.json", "study.journal", "log.jsonl", "launcher.json"}


def test_a_seed_decides_and_another_does_not_change_the_spec_of_the_noise(tmp_path):
    steps = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        spec = sweep_spec(TEXT + f"[search]\nseed = {seed}\n", name=name)
        steps.append([one.outcome for one in sweep(tmp_path, spec).trials])
    assert steps[0] == steps[1] != steps[2]


def test_a_run_is_resumed_as_it_was_started_and_in_no_other_way(tmp_path, table):
    done = sweep(tmp_path)
    again = sweep(tmp_path, resume=True)
    assert list(again.trials) == list(done.trials)
    for asked in (replay(table), OfflineAsked(launcher=LauncherName.ROOFLINE, noise=0.5)):
        with pytest.raises(SpecError, match=r"noise 0\.02|no workload"):
            sweep(tmp_path, asked=asked, resume=True)
    with pytest.raises(SpecError, match="answered by launcher 'roofline', not 'ray'"):
        settle_launcher(done.directory, RAY, is_there=True)
    (done.directory / "launcher.json").unlink()
    with pytest.raises(SpecError, match="answered by launcher 'ray', not 'roofline'"):
        sweep(tmp_path, resume=True)


def test_trials_of_another_launcher_are_refused_where_the_file_is_lost(tmp_path):
    with pytest.raises(SpecError, match="trial 0 of this run is roofline's"):
        refuse_other_launcher(sweep(tmp_path).trials, STAMP)


def test_nothing_is_proven_and_nothing_timed_again(tmp_path):
    done = sweep(tmp_path)
    assert {(one.round, one.proof_id) for one in done.trials} == {(0, None)}


def test_without_a_known_memory_it_is_refused(tmp_path):
    with pytest.raises(SpecError, match="memory of 'cpu' is not known"):
        sweep(tmp_path, sweep_spec(CPU.format(0)))
    with pytest.raises(SpecError, match=r"cluster\.gpu \| missing"):
        sweep(tmp_path, sweep_spec("[cluster]\nworld_size = 4\n"))
    assert not list(tmp_path.iterdir())


def test_a_table_answers_a_sweep(tmp_path, table):
    done = sweep(tmp_path, replay_spec(), replay(table))
    assert {one.kind.value for one in done.trials} == {"replayed", "out_of_memory"}
    assert done.recipe.candidate.layout.cp == 1
    assert done.recipe.caveats[0].startswith("REPLAYED, not measured")
    assert "exposed communication is not in the table for 5 of 5" in done.recipe.caveats[1]
    seen = [one for one in done.trials if one.candidate.layout.cp == 1]
    steps = {one.candidate.layout.tp: one.measurement and one.measurement.step_s for one in seen}
    assert steps == {1: None, 2: 1.3, 4: 1.5}


def test_what_the_table_lacks_is_not_judged(tmp_path, table):
    short = write_csv(tmp_path / "short.csv", [one for one in ROWS if one["cp"] > 1])
    done = sweep(tmp_path, replay_spec(), replay(short))
    (entry,) = [one for one in done.choice.certificate if one.cp == 1]
    assert entry.evidence is None
    assert "these trials cannot run its 3 layouts" in entry.reason


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(2, 1, seq_len=128)], "no workload with the model, the batch and the 4 ranks"),
        ([row(2, 1, data_parallel="zero1")], "knows none of the"),
    ],
)
def test_a_table_of_something_else_is_refused(tmp_path, rows, why):
    other = write_csv(tmp_path / "other.csv", rows)
    with pytest.raises(SpecError, match=why):
        sweep(tmp_path / "runs", replay_spec(), replay(other))


def test_a_simulated_run_can_be_replayed_and_is_named(tmp_path):
    found = read_landscapes(sweep(tmp_path).directory)
    assert "nothing of it was measured: its trials are roofline's" in found.notes


def test_the_command_prints_it_as_predicted(tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text(write_toml(SPEC))
    words = ["sweep", str(path), "--runs", str(tmp_path / "runs"), "--launcher", "roofline"]
    assert run([*words, "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "Trials (predicted, nothing ran)" in out
    assert "Recipe (predicted, nothing ran)" in out
    assert "caveat: PREDICTED, not measured" in out
    assert run([*words, "--seed", "3", "--resume", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["launcher"] == "roofline"
    assert run([*words, "--seed", "4", "--resume"]) == 2
    assert "search.seed" in capsys.readouterr().err
    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs"), "--resume"]) == 2


def test_the_command_exits_1_where_nothing_fits(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(write_toml(sweep_spec(CPU.format(2000) + TABLES)))
    words = ["sweep", str(path), "--runs", str(tmp_path / "runs"), "--launcher", "roofline"]
    assert run(words) == 1
    assert "No recipe" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "small" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--launcher", "roof"], "did you mean 'roofline'?"),
        (["--launcher", "replay"], "--table is missing"),
        (["--table", "x.csv"], "--table is for --launcher replay, not ray"),
        (["--noise", "0.1"], "wanted it with --launcher roofline or replay"),
        (["--launcher", "roofline", "--noise", "2"], "--noise is 2; wanted a share"),
        (["--launcher", "roofline", "--address", "auto"], "--address is for --launcher ray"),
        (["--launcher", "roofline", "--seed", "-1"], "--seed | seed is -1"),
        (["--launcher", "replay", "--table", "none.csv"], "cannot read none.csv"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(tmp_path, words, why, capsys):
    path = tmp_path / "my.toml"
    path.write_text(write_toml(SPEC))
    assert run(["sweep", str(path), "--runs", str(tmp_path / "runs"), *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_its_recipe_is_shown_as_predicted_and_cannot_be_qualified_or_reproduced(tmp_path, capsys):
    path = sweep(tmp_path).directory / "recipe.json"

    assert run(["recipe", "show", str(path)]) == 0
    assert "Recipe (predicted, nothing ran)" in capsys.readouterr().out
    for word in ("requalify", "reproduce"):
        assert run(["recipe", word, str(path)]) == 2
        assert "of --launcher roofline: nothing ran" in capsys.readouterr().err
    commands = json.loads(path.read_text())["commands"]
    assert not [one for one in commands if "requalify" in one or "reproduce" in one]


def test_a_trial_that_did_not_run_has_no_trace_and_its_page_claims_nothing(tmp_path, capsys):
    done = sweep(tmp_path)

    assert run(["trace", str(done.directory), "1"]) == 1
    assert "--launcher roofline: nothing ran" in capsys.readouterr().err
    page = (done.directory / "report.html").read_text()
    assert "predicted: nothing ran, nothing certified" in page
    assert "requalify" not in page.split("Run it again")[1]


@pytest.mark.parametrize("name", ["recipe.json", "spec.toml", "trials/x.parquet"])
def test_an_export_does_not_overwrite_a_file_of_the_run(tmp_path, name, capsys):
    directory = sweep(tmp_path).directory
    (directory / "trials" / "x.parquet").write_bytes(b"")
    before = (directory / name).read_bytes()

    words = ["recipe", "export", str(directory), "--to", "megatron", "--out", str(directory / name)]
    assert run(words) == 2
    assert "wanted another file" in capsys.readouterr().err
    assert (directory / name).read_bytes() == before


def test_a_run_whose_trials_say_something_else_is_another_table(tmp_path):
    directory = sweep(tmp_path / "a").directory
    (tmp_path / "b").mkdir()
    done = sweep(tmp_path / "b", SPEC, replay(directory))
    path = min((directory / "trials").iterdir())
    path.write_bytes(path.read_bytes() + b" ")

    with pytest.raises(SpecError, match="table"):
        sweep(done.directory.parent, SPEC, replay(directory), resume=True)
