"""What the batch script begins, passes on and ends; ray and cptune are programs of a few lines."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_job import JOB_ID, PORT, SCRIPT, SlurmJob
from sweep_process import ROOT, SweepProcesses, wait_for

RAY = """
import pathlib, signal, socket, sys
options = dict(word[2:].partition("=")[::2] for word in sys.argv[2:])
role = "head" if "head" in options else "worker"
here = pathlib.Path(__file__).parent
code = here / f"{role}.code"
if code.exists():
    sys.exit(int(code.read_text()))
if role == "head":
    listening = socket.create_server(("", int(options["port"])))
(here / f"{role}.up").touch()
signal.pause()
"""
CPTUNE = """
import json, pathlib, signal, sys
here = pathlib.Path(__file__).parent
(here / "words.json").write_text(json.dumps(sys.argv[1:]))
code = here / "sweep.code"
if not code.exists():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (here / "sweep.up").touch()
    signal.pause()
sys.exit(int(code.read_text()))
"""


@pytest.fixture
def job(processes: SweepProcesses) -> SlurmJob:
    programs = processes.folder / "bin"
    programs.mkdir()
    shebang = f"#!{sys.executable} -S\n"
    for name, text in {"ray": RAY, "cptune": CPTUNE, "python": "\n"}.items():
        (programs / name).write_text(shebang + text)
        (programs / name).chmod(0o755)
    return SlurmJob(processes, programs)


def set_code(job: SlurmJob, **codes: int) -> None:
    for who, code in codes.items():
        (job.folder / "bin" / f"{who}.code").write_text(str(code))


def stopped(job: SlurmJob, number: int, **environment: str) -> tuple[int, str]:
    """Exit code and words of a job that is signalled, it alone, while its sweep runs."""
    started = job.start("s.toml", environment=environment)
    wait_for((job.folder / "bin" / "sweep.up").exists, within_s=30, what="the sweep")
    started.send_signal(number)
    _, err = started.communicate(timeout=30)
    return started.returncode, err


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_sweep_has_its_words_whole_and_the_job_its_exit_code(job, code):
    set_code(job, sweep=code)
    bystander = subprocess.Popen(["bash", "-c", "exec -a raylet sleep 60"])  # of another job
    try:
        done = job.run("a b.toml", "--runs", 'it\'s "$HOME"')
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()

    assert done.returncode == code, done.stderr
    words = json.loads((job.folder / "bin" / "words.json").read_text())
    address = f"{socket.gethostname()}:{PORT}"
    told = ["sweep", "a b.toml", "--runs", 'it\'s "$HOME"', "--address", address, "--resume"]
    assert words == told
    assert job.processes.wait_gone() == {}
    assert job.scratch_left() == []
    assert job.requeues() == []


def test_each_node_has_one_ray_that_may_use_all_of_it(job):
    set_code(job, sweep=0)
    assert job.run("s.toml", SLURM_GPUS_ON_NODE="8").returncode == 0

    head, workers = job.steps()
    host = socket.gethostname()
    assert {f"--nodelist={host}", "--nodes=1", "--ntasks=1"} <= set(head)
    assert {f"--exclude={host}", "--nodes=1", "--ntasks=1"} <= set(workers)
    for step in (head, workers):
        assert {"--overlap", "--cpu-bind=none", "--ntasks-per-node=1"} <= set(step)


@pytest.mark.parametrize(
    ("number", "restarts", "requeued"),
    [(signal.SIGTERM, "0", []), (signal.SIGUSR1, "7", [["requeue", str(JOB_ID)]])],
    ids=["cancelled", "time-limit"],
)
def test_a_signal_ends_the_sweep_first_and_near_the_time_limit_the_job_comes_again(
    job, number, restarts, requeued
):
    code, err = stopped(job, number, SLURM_RESTART_COUNT=restarts)

    assert code == 143, err
    assert job.requeues() == requeued
    assert job.processes.wait_gone() == {}
    assert job.scratch_left() == []


def test_a_job_that_came_again_too_often_stays_ended(job):
    code, err = stopped(job, signal.SIGUSR1, SLURM_RESTART_COUNT="8")

    assert code == 143
    assert job.requeues() == []
    assert "restart 8 was the last one allowed" in err


@pytest.mark.parametrize(
    ("role", "said"),
    [("head", f"no Ray on .*:{PORT}"), ("worker", "a Ray node ended with 3 before all were in")],
)
def test_a_node_that_does_not_come_up_ends_the_job(job, role, said):
    set_code(job, sweep=0, **{role: 3})
    if role == "worker":  # all others wait for it
        (job.folder / "bin" / "python").write_text("#!/bin/sh\nexec sleep 60\n")

    done = job.run("s.toml")

    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert job.processes.wait_gone() == {}


def test_the_nodes_of_a_script_that_was_killed_end_by_themselves(job):
    started = job.start("s.toml")
    wait_for((job.folder / "bin" / "sweep.up").exists, within_s=30, what="the sweep")
    started.kill()
    ours = job.processes.left

    def is_over() -> bool:  # what is left is the sweep, which Slurm ends with its step
        return all("bin/cptune" in words for words in ours().values())

    wait_for(is_over, within_s=10, what="the end of both nodes")
    assert len(ours()) == 1
    assert job.scratch_left() == ["cp4211.in"]
    job.processes.end()
    started.communicate(timeout=10)


def test_jobs_of_one_node_take_ports_of_their_own(job):
    set_code(job, sweep=0)
    with socket.create_server(("", PORT + 1)):
        assert job.run("s.toml").returncode == 0
    assert job.run("s.toml", SLURM_JOB_ID=str(JOB_ID + 1)).returncode == 0

    heads = [step for step in job.steps() if "--head" in step]
    ports = [re.search(r"--port=(\d+).*port=(\d+)", " ".join(step)).groups() for step in heads]
    assert ports == [(str(PORT + 2), str(PORT + 3))] * 2


def test_a_token_of_its_own_guards_each_job_and_is_written_nowhere(job):
    set_code(job, sweep=0)
    (job.folder / "bin" / "python").write_text('#!/bin/sh\necho "$RAY_AUTH_MODE $RAY_AUTH_TOKEN"\n')
    tokens = set()
    for _ in range(2):
        done = job.run("s.toml", RAY_AUTH_TOKEN="theirs", RAY_ADDRESS="10.0.0.1:6379")
        mode, token = done.stdout.split()
        assert mode == "token"
        assert re.fullmatch("[0-9a-f]{64}", token)
        assert token not in done.stderr + job.log.read_text()
        tokens.add(token)
    assert len(tokens) == 2


def test_what_is_missing_is_said_before_anything_starts(job):
    (job.folder / "bin" / "ray").unlink()
    for words, said in (((), "no arguments"), (("s.toml",), "bin/ray; set CPTUNE_BIN")):
        done = job.run(*words)
        assert done.returncode == 2
        assert said in done.stderr
    assert job.steps() == []


def test_the_job_asks_slurm_for_what_the_script_counts_on():
    asked = re.findall(r"^#SBATCH (\S+)$", SCRIPT.read_text(), re.MULTILINE)
    assert {"--signal=B:USR1@180", "--requeue", "--exclusive", "--ntasks-per-node=1"} <= set(asked)
    assert os.access(SCRIPT, os.X_OK)
    assert Path("deploy/slurm/sweep.sbatch") == SCRIPT.relative_to(ROOT)
