"""`cptune sweep` as a user runs it: what it leaves, what it refuses, how it goes on."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState
from sweep_process import (
    SweepProcesses,
    run_files,
    sweep_processes,
    whole_run,
)

from cptune import spec as specs
from cptune.reporting.report import read_run
from cptune.store.ledger import ParquetLedger
from cptune.store.schema import EDGES, EXPOSURES, RANKS, RECIPES, STEPS, TRIALS, why_foreign
from topology.nouns import Topology

KEYS = {
    "tp1-cp1-pp1-dp2-mb1-none-full-ddp-auto",
    "tp2-cp1-pp1-dp1-mb1-none-full-ddp-auto",
    "tp1-cp2-pp1-dp1-mb1-zigzag-ring-st1-none-full-ddp-auto",
    "tp1-cp2-pp1-dp1-mb1-contiguous-ring-st1-none-full-ddp-auto",
}
SPLIT_BYTES = 2_300_000  # tp2 fits, the layouts that hold all weights do not


@dataclass(frozen=True)
class Finished:
    processes: SweepProcesses
    spec: Path
    result: subprocess.CompletedProcess[str]

    @property
    def run(self) -> Path:
        return self.processes.runs / "whole"


@pytest.fixture(scope="module")
def finished() -> Iterator[Finished]:
    """One whole sweep, JSON asked for."""
    with sweep_processes() as processes:
        spec = processes.write("whole", cluster={"device_memory_bytes": SPLIT_BYTES})
        yield Finished(processes, spec, processes.sweep(spec, "--format", "json"))


def test_a_sweep_ends_with_a_recipe_and_every_file(finished):
    assert finished.result.returncode == 0, finished.result.stderr
    names = {path.name for path in (finished.run / "trials").iterdir()}
    assert len(names) == len(KEYS)
    assert run_files(finished.run) == whole_run(finished.run)
    recipe = json.loads((finished.run / "recipe.json").read_text())
    (row,) = pq.read_table(finished.run / "recipes.parquet").to_pylist()
    assert json.loads(row["recipe_json"]) == recipe
    proof = recipe["equivalence"]
    assert proof["passed"]
    assert proof["candidate"] == recipe["candidate_key"]
    assert {"causal: gradients", "document: loss"} <= {check["name"] for check in proof["checks"]}
    assert finished.processes.wait_gone() == {}


def test_its_page_is_of_the_recipe_that_its_trials_still_give(finished):
    seen = read_run(finished.run)
    recipe = json.loads((finished.run / "recipe.json").read_text())
    page = (finished.run / "report.html").read_text()

    assert (seen.state.value, seen.doubts, seen.quarantined) == ("finished", (), ())
    assert json.loads(json.dumps(seen.recipe.to_json())) == recipe
    assert f"step {recipe['measurement']['step_s'] * 1e3:,.0f} ms" in page
    assert all(entry["reason"] in page for entry in recipe["certificate"])


def test_json_is_alone_on_stdout(finished):
    told = json.loads(finished.result.stdout)
    assert told["recipe"] == json.loads((finished.run / "recipe.json").read_text())
    assert {trial["candidate_key"] for trial in told["trials"]} == KEYS
    assert told["legal"] == len(KEYS)
    assert "trial" in finished.result.stderr


def test_every_table_is_typed_and_the_ledger_reads_them_back(finished):
    schemas = {
        "trials": TRIALS,
        "ranks": RANKS,
        "edges": EDGES,
        "steps": STEPS,
        "exposures": EXPOSURES,
    }
    for table, columns in schemas.items():
        for path in (finished.run / table).glob("*.parquet"):
            assert why_foreign(pq.read_schema(path), columns) is None, path
    assert why_foreign(pq.read_schema(finished.run / "recipes.parquet"), RECIPES) is None
    ledger = ParquetLedger(finished.run, writable=False)
    trials = ledger.read()
    assert ledger.quarantined == []
    assert {trial.candidate.key for trial in trials} == KEYS
    assert [trial.number for trial in trials] == list(range(len(KEYS)))
    for trial in trials:
        if trial.measurement is not None:
            assert [len(report.step_s) for report in trial.measurement.ranks] == [2, 2]


def test_spec_and_topology_are_kept_resolved(finished):
    kept = finished.run / "spec.toml"
    spec = specs.load(kept)
    assert specs.write_toml(spec) == kept.read_text()
    assert specs.spec_changes(specs.load(finished.spec), spec) == [
        "axes.cp: [] -> [1, 2]",
        "axes.tp: [] -> [1, 2]",
        'stack.kind: left out -> "eager"',
    ]
    topology = Topology.from_json(json.loads((finished.run / "topology.json").read_text()))
    assert [len(node.name) > 0 for node in topology.nodes] == [True]


def test_the_log_tells_each_start_and_end_in_order(finished):
    events = [json.loads(line) for line in (finished.run / "log.jsonl").read_text().splitlines()]
    started = [event["candidate_key"] for event in events if event["event"] == "trial_started"]
    ended = [event["candidate_key"] for event in events if event["event"] == "trial_finished"]
    assert started == ended
    assert set(started) == KEYS
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_the_study_shows_parameters_values_and_broken_constraints(finished):
    study = optuna.load_study(
        study_name="whole", storage=f"sqlite:///file:{finished.run / 'study.db'}?mode=ro&uri=true"
    )
    ledger = {
        trial.candidate.key: trial for trial in ParquetLedger(finished.run, writable=False).read()
    }
    assert {trial.user_attrs["candidate_key"] for trial in study.trials} == KEYS
    states = set()
    for shown in study.trials:
        trial = ledger[shown.user_attrs["candidate_key"]]
        states.add(shown.state)
        for name, value in shown.params.items():
            assert trial.candidate.axes()[name] == value
        if trial.measurement is None:
            assert shown.state is TrialState.PRUNED
            assert shown.constraints["memory_short_gib"] == pytest.approx(
                trial.shortage.short_bytes / 2**30
            )
            assert shown.constraints["memory_short_gib"] > 0
            assert max(shown.system_attrs["constraints"]) > 0
        else:
            assert shown.value == trial.measurement.step_s
            assert max(shown.constraints.values()) <= 0
    assert states == {TrialState.COMPLETE, TrialState.PRUNED}
    study._storage.remove_session()


def test_a_run_that_exists_is_refused_before_anything_starts(finished):
    before = finished.processes.ray_sessions()
    again = finished.processes.sweep(finished.spec)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert finished.processes.ray_sessions() == before


def test_resume_with_another_spec_names_the_field(finished):
    before = finished.processes.ray_sessions()
    changed = finished.processes.folder / "changed.toml"
    changed.write_text(finished.spec.read_text().replace("warmup_steps = 1", "warmup_steps = 3"))
    again = finished.processes.sweep(changed, "--resume")
    assert again.returncode == 2
    assert "budget.warmup_steps: 1 -> 3" in again.stderr
    assert finished.processes.ray_sessions() == before


def test_resume_with_nothing_left_gives_the_same_recipe_without_a_trial(finished):
    before = {name: (finished.run / name).read_bytes() for name in run_files(finished.run)}
    start = time.monotonic()
    again = finished.processes.sweep(finished.spec, "--resume")
    assert time.monotonic() - start < 30
    assert again.returncode == 0, again.stderr
    assert run_files(finished.run) == set(before)
    for name in before:
        if name.endswith((".parquet", "recipe.json")):
            assert (finished.run / name).read_bytes() == before[name], name


def test_nothing_fits_ends_with_1_and_says_what_is_short(processes):
    spec = processes.write(
        "small", cluster={"device_memory_bytes": 300_000}, axes={"tp": [1], "cp": [1]}
    )
    ended = processes.sweep(spec)
    assert ended.returncode == 1
    assert "no candidate of 1 passed: 1 out_of_memory" in ended.stdout
    assert re.search(r"asked [\d.]+ KiB, [\d.]+ KiB of 292.97 KiB free", ended.stdout), ended.stdout
    assert not (processes.runs / "small" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"heads": 6}}, r"model \| heads \(6\) must be a multiple of kv_heads \(4\)"),
        ({"cluster": {"world_size": 3}, "axes": {"cp": [2]}}, r"no layout of 3 ranks is legal"),
        ({"budget": {"step": 3}}, r"budget\.step \| unknown key, did you mean 'steps'"),
    ],
    ids=["heads", "world", "typo"],
)
def test_wrong_input_is_refused_before_anything_starts(processes, sections, said):
    refused = processes.sweep(processes.write("wrong", **sections))
    assert refused.returncode == 2
    assert re.search(said, refused.stderr), refused.stderr
    assert "Traceback" not in refused.stderr
    assert not processes.runs.exists()
    assert processes.ray_sessions() == []


def test_a_run_directory_that_cannot_be_made_is_refused_before_anything_starts(processes):
    processes.runs.write_text("a file")
    refused = processes.sweep(processes.write("blocked"))
    assert refused.returncode == 2
    assert str(processes.runs) in refused.stderr
    assert processes.ray_sessions() == []
