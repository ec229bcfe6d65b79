"""The driver killed at any moment: what was finished stays, and the next one goes on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState
from sweep_process import SweepProcesses, sweep_processes, wait_for

from cptune import spec as specs
from cptune.domain.trial import searched
from cptune.search.prepare import prepare
from cptune.store.ledger import ParquetLedger

SEED = int(os.environ.get("CPTUNE_CHAOS_SEED", "20261129"))
# Where the kills land. Each trial takes a second or two, so ten of these end five trials at most.
MOMENTS = ("start",) * 3 + ("trial",) * 4 + ("finish",) * 3
MIXED = {  # eight candidates, some of which are predicted not to fit
    "workload": {"global_batch_seqs": 4},
    "axes": {"micro_batch": [1, 2]},
    "cluster": {"device_memory_bytes": 3_000_000},
    "budget": {"steps": 60},
}


@pytest.fixture
def processes():
    with sweep_processes() as made:
        yield made


def legal_keys(path: Path) -> set[str]:
    space = prepare(specs.load(path), None).space
    return {candidate.key for candidate in space.candidates}


def trial_files(run: Path) -> list[Path]:
    return sorted((run / "trials").glob("0*.parquet"))


def wait_for_moment(moment: str, processes: SweepProcesses, run: Path, draw: random.Random) -> None:
    """Wait until the moment of a kill has come; the exact instant is drawn."""
    if moment == "start":
        time.sleep(draw.uniform(0.2, 6.0))
    elif moment == "trial":
        wait_for(processes.is_trying, within_s=60, what="a trial")
        time.sleep(draw.uniform(0.0, 1.0))
    else:
        before = len(trial_files(run))
        wait_for(lambda: len(trial_files(run)) > before, within_s=60, what="the end of a trial")
        time.sleep(draw.uniform(0.0, 0.03))


def assert_consistent(run: Path, legal: set[str]) -> None:
    """The invariants of a finished run, however it came to its end."""
    ledger = ParquetLedger(run, writable=False)
    trials = ledger.read()
    assert ledger.quarantined == []
    assert {trial.candidate.key for trial in trials} == legal
    attempts = Counter((trial.candidate.key, trial.attempt) for trial in trials)
    assert set(attempts.values()) == {1}
    for path in [*run.glob("*.parquet"), *run.glob("[!q]*/*.parquet")]:
        pq.read_table(path, page_checksum_verification=True)
    assert not list(run.rglob(".tmp-*"))
    assert_study_agrees(run, {trial.candidate.key: trial for trial in searched(trials)})
    assert json.loads((run / "recipe.json").read_text())


def assert_study_agrees(run: Path, latest: dict) -> None:
    study = optuna.load_study(
        study_name=run.name, storage=f"sqlite:///file:{run / 'study.db'}?mode=ro&uri=true"
    )
    shown = [trial for trial in study.trials if trial.user_attrs.get("outcome") != "stopped"]
    cut = [trial for trial in study.trials if trial.user_attrs.get("outcome") == "stopped"]
    study._storage.remove_session()
    assert not [trial for trial in study.trials if not trial.state.is_finished()]
    assert all(trial.state is TrialState.FAIL for trial in cut)
    assert Counter(trial.user_attrs["candidate_key"] for trial in shown) == Counter(list(latest))
    for trial in shown:
        measured = latest[trial.user_attrs["candidate_key"]].measurement
        assert trial.value == (None if measured is None else measured.step_s)


def events(run: Path, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def started_again(run: Path) -> list[str]:
    """Candidates that were started after their trials file had its name."""
    ended = {  # by the first attempt: the others come after it
        path.name[7:].rpartition("-a")[0]: path.stat().st_mtime
        for path in reversed(trial_files(run))
    }
    return [
        key
        for event in events(run, "trial_started")
        if (key := str(event["candidate_key"])) in ended
        and datetime.fromisoformat(str(event["at"])).timestamp() > ended[key] + 0.002
    ]


@pytest.mark.timeout(400)
def test_ten_kills_in_a_row_lose_nothing_and_run_nothing_twice(processes):
    draw = random.Random(SEED)
    moments = draw.sample(MOMENTS, len(MOMENTS))
    sys.stdout.write(f"CPTUNE_CHAOS_SEED={SEED}: {moments}\n")
    spec, run = processes.write("mixed", **MIXED), processes.runs / "mixed"
    kept: dict[str, bytes] = {}
    for kill, moment in enumerate(moments):
        resume = ["--resume"] if (run / "spec.toml").exists() else []
        driver = processes.start_sweep(
            spec, *resume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_moment(moment, processes, run, draw)
        assert driver.poll() is None, f"driver {kill} ended before its kill at {moment!r}"
        driver.kill()
        driver.wait()
        assert processes.wait_gone() == {}, f"after kill {kill} at {moment!r}"
        now = {path.name: path.read_bytes() for path in trial_files(run)}
        assert kept.items() <= now.items(), "a finished trial was lost or altered"
        kept = now
    sys.stdout.write(f"{len(kept)} trials finished between the kills\n")
    last = processes.sweep(spec, "--resume")
    assert last.returncode == 0, last.stderr
    legal = legal_keys(spec)
    assert len(legal) == 8
    assert 0 < len(kept) < len(legal)
    assert_consistent(run, legal)
    assert started_again(run) == []
    assert {trial["outcome"] for trial in json_trials(run)} == {"measured", "infeasible"}


def rows_of(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


def json_trials(run: Path) -> list[dict[str, object]]:
    return [row for path in trial_files(run) for row in rows_of(path)]


def test_a_driver_killed_in_the_finals_measures_what_is_missing_and_nothing_twice(processes):
    finals = {"steps": 8, "max_steps": 8, "finalist_rounds": 3, "depths": [1, 2]}
    axes = {"tp": [1], "sharding": ["zigzag"], "cp": [1, 2]}
    spec = processes.write("finals", model={"layers": 3}, axes=axes, budget=finals)
    run = processes.runs / "finals"
    driver = processes.start_sweep(spec, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(
        lambda: len(list((run / "trials").glob("*-a1.parquet"))) > 0,
        within_s=60,
        what="a trial of the finals",
    )
    driver.kill()
    driver.wait()
    assert processes.wait_gone() == {}
    kept = {path.name: path.read_bytes() for path in trial_files(run)}
    last = processes.sweep(spec, "--resume")
    assert last.returncode == 0, last.stderr
    assert kept.items() <= {path.name: path.read_bytes() for path in trial_files(run)}.items()
    assert_consistent(run, legal_keys(spec))
    rounds = Counter((row["candidate_key"], row["round"]) for row in json_trials(run))
    assert rounds == {(key, turn): 1 for key in legal_keys(spec) for turn in range(4)}
    drawn = {(row["round"] > 0, row["extrapolated"], row["layers"]) for row in json_trials(run)}
    assert drawn == {(False, True, 3), (True, False, None)}  # finals run at full depth
    seen = json.loads((run / "recipe.json").read_text())["measurement"]
    assert seen["step_ci_share"] is not None
    assert seen["depth"] is None
    methods = {one["method"] for one in seen["exposures"] if one["axis"] == "dp"}
    assert methods == {"interval-union", "ablation"}
    exposures = [row for path in (run / "exposures").glob("*") for row in rows_of(path)]
    checked = {row["attempt"] for row in exposures if row["method"] == "ablation"}
    assert checked == {1}, "the first round of finals alone"


def test_a_second_driver_is_refused_and_the_first_goes_on(processes):
    spec = processes.write("shared", budget={"steps": 100_000, "trial_s": 100.0})
    first = processes.start_sweep(spec)
    wait_for(processes.is_trying, within_s=60, what="a trial")
    sessions = processes.ray_sessions()
    second = processes.sweep(spec, "--resume")
    assert second.returncode == 2
    assert f"pid {first.pid} " in second.stderr
    assert processes.ray_sessions() == sessions
    assert first.poll() is None
    assert processes.is_trying()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert first.returncode == 130


@pytest.fixture(scope="module")
def ended():
    """A finished run of two candidates; tests break copies of it."""
    with sweep_processes() as made:
        spec = made.write("ended", axes={"tp": [1], "sharding": ["zigzag"]})
        result = made.sweep(spec)
        assert result.returncode == 0, result.stderr
        yield spec, made.runs / "ended"


def resume_broken(processes, ended, damage) -> tuple[Path, str]:
    """Damage a copy of the finished run and resume it; returns it and what was said."""
    spec, source = ended
    run = processes.runs / "ended"
    shutil.copytree(source, run)
    damage(run)
    resumed = processes.sweep(spec, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_consistent(run, legal_keys(spec))
    return run, resumed.stderr


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [
        lambda study: study.write_bytes(b"no database " * 1000),
        tear,
        Path.unlink,
    ],
    ids=["foreign", "torn", "lost"],
)
def test_a_study_that_cannot_serve_is_set_aside_and_rebuilt(processes, ended, damage):
    before = {path.name: path.read_bytes() for path in trial_files(ended[1])}
    broken = []

    def harm(run: Path) -> None:
        damage(run / "study.db")
        broken.extend(path.read_bytes() for path in [run / "study.db"] if path.exists())

    run, _ = resume_broken(processes, ended, harm)
    assert [path.read_bytes() for path in run.glob("study.db.aside-*")] == broken
    assert {path.name: path.read_bytes() for path in trial_files(run)} == before


def test_a_torn_trial_is_quarantined_by_name_and_tried_again(processes, ended):
    victim = trial_files(ended[1])[-1].name
    started = len(events(ended[1], "trial_started"))
    run, said = resume_broken(processes, ended, lambda run: tear(run / "trials" / victim))
    assert victim in said
    assert (run / "quarantine" / f"trials-{victim}").exists()
    again = [event["candidate_key"] for event in events(run, "trial_started")[started:]]
    assert again == [victim[7:].rpartition("-a")[0]]
    whole = trial_files(ended[1])[0]
    assert (run / "trials" / whole.name).read_bytes() == whole.read_bytes()
