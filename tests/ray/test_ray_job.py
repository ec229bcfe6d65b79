"""The sweep as a Ray job on a head of its own: the same files as a local one, and a clean end."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_process import ROOT, SweepProcesses, run_files, wait_for, whole_run

from cptune import spec as specs
from cptune.store.ledger import ParquetLedger

RAY = Path(sys.executable).with_name("ray")
RANKS = 4
CANDIDATES = 2


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.fixture
def head(processes: SweepProcesses) -> Iterator[SweepProcesses]:
    """A head node of two CPUs, as `ray start --head` makes it on a small machine."""
    port, dashboard, client, agent = free_ports(4)
    token = processes.folder / "home" / ".ray" / "auth_token"
    processes.environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }
    generated = processes.start([RAY, "get-auth-token", "--generate"])
    generated.communicate(timeout=60)
    token.chmod(0o600)  # Ray writes it readable by all
    log = (processes.folder / "head.log").open("w")
    block = processes.start(
        [
            *(RAY, "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats"),
            *(f"--port={port}", f"--dashboard-port={dashboard}"),
            *(f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"),
            f"--temp-dir={processes.folder / 'r'}",
            "--object-store-memory=100000000",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        wait_for(lambda: answers(dashboard), within_s=60, what="the dashboard of the head")
        yield processes
    finally:
        block.terminate()
        block.wait(timeout=30)
        log.close()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def uploaded(processes: SweepProcesses) -> Path:
    """What a user would upload: the packages and a spec, none of the rest of a checkout."""
    work = processes.folder / "work"
    for package in ("cptune", "topology", "jobs"):
        shutil.copytree(
            ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    spec = processes.write(
        "job",
        cluster={"world_size": RANKS},
        workload={"global_batch_seqs": 4},
        axes={"tp": [1], "cp": [2, 4], "sharding": ["zigzag"]},
    )
    shutil.move(spec, work / "job.toml")
    return work


def submit(head: SweepProcesses, work: Path, *words: object) -> subprocess.CompletedProcess[str]:
    entry = [sys.executable, "-m", "jobs.sweep", "job.toml", *words]
    job = head.start([RAY, "job", "submit", "--working-dir", work, "--", *entry])
    out, err = job.communicate(timeout=110)
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


@pytest.mark.timeout(240)
def test_a_submitted_sweep_leaves_the_files_of_a_local_one_outside_its_upload(head):
    work = uploaded(head)
    done = submit(head, work)
    assert done.returncode == 0, done.stdout + done.stderr
    run = head.folder / "home" / "cptune-runs" / "job"
    ledger = ParquetLedger(run, writable=False)
    trials = ledger.read()
    assert len(trials) == CANDIDATES
    assert all(trial.measurement for trial in trials), [trial.reason for trial in trials]
    assert {len(trial.placement.ranks) for trial in trials} == {RANKS}
    assert run_files(run) == whole_run(run)
    assert specs.load(run / "spec.toml").cluster.world_size == RANKS
    assert not (work / "runs").exists()


@pytest.mark.parametrize(
    ("address", "words", "said"),
    [
        ("127.0.0.1:1", ("--runs", "runs"), "inside Ray's copy"),
        ("127.0.0.1:1", ("--runs=./runs",), "inside Ray's copy"),
        ("", (), "RAY_ADDRESS is not set"),
    ],
    ids=["inside", "inside-joined", "no-job"],
)
def test_a_job_that_would_lose_its_run_is_refused(processes, address, words, said):
    processes.environment["RAY_ADDRESS"] = address
    job = processes.start([sys.executable, "-m", "jobs.sweep", *words], cwd=processes.folder)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 2
    assert said in err
