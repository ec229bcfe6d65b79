"""The batch script with real Ray nodes: what a job left near its time limit, the next one ends."""

import signal
import sys
from pathlib import Path

import pytest
from slurm_job import JOB_ID, SlurmJob
from sweep_process import wait_for

from cptune.store.ledger import ParquetLedger

BIN = Path(sys.executable).parent


def rows(run: Path) -> dict[str, bytes]:
    """Each trial's file of a run, by name."""
    return {path.name: path.read_bytes() for path in (run / "trials").glob("0*.parquet")}


@pytest.mark.timeout(240)
def test_a_job_that_is_requeued_goes_on_with_its_sweep_and_leaves_nothing(processes):
    job = SlurmJob(processes, BIN)
    spec = processes.write("cut")
    words = (spec, "--runs", processes.runs)
    run = processes.runs / "cut"

    first = job.start(*words)
    wait_for(lambda: bool(rows(run)), within_s=90, what="a finished trial")
    first.send_signal(signal.SIGUSR1)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 143, err
    assert processes.wait_gone() == {}
    assert job.requeues() == [["requeue", str(JOB_ID)]]
    assert job.scratch_left() == []
    kept = rows(run)
    assert not (run / "recipe.json").exists()

    second = job.start(*words, environment={"SLURM_RESTART_COUNT": "1"})
    out, err = second.communicate(timeout=100)
    assert second.returncode == 0, err
    assert "2 nodes, Ray on" in err
    assert processes.wait_gone() == {}
    assert job.scratch_left() == []
    trials = ParquetLedger(run, writable=False).read()
    assert rows(run).items() >= kept.items()
    nodes = {rank.device.node for trial in trials for rank in trial.placement.ranks}
    assert len(nodes) == 2, nodes
    assert "Recipe" in out
