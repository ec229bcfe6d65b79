"""Actors hold the GPUs that their ranks were placed on, up to where a rank asks for CUDA."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nvml_scenarios as nv
import pytest
from test_nvml_cluster import with_own_gpus

from cptune.domain.outcome import OutcomeKind
from cptune.store.ledger import ParquetLedger

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def gang_on(nvml_library, tmp_path):
    """What a gang on a Ray of these machines finds, of which Ray counts so many GPUs each."""

    def run(*machines, ray_gpus):
        files = [tmp_path / f"answers{number}.txt" for number in range(len(machines))]
        for file, answers in zip(files, machines, strict=True):
            file.write_text(nv.render(answers))
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{HERE}:{ROOT / 'tests'}"}
        library = nvml_library["new"]
        command = [sys.executable, "-m", "gpu_gang", library, str(ray_gpus), *files]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=220)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def two_nodes():
    machine = nv.bridged_pair()
    return [with_own_gpus(machine, node=node, driver="550.1") for node in range(2)]


@pytest.mark.timeout(240)
def test_every_rank_gets_its_gpu_and_says_that_torch_finds_none(gang_on):
    found = gang_on(*two_nodes(), ray_gpus=2)

    assert found["gpu"] is None  # no table has it, and its trials run all the same
    assert len(set(found["devices"])) == 3
    assert found["held"] == {uuid: uuid for uuid in found["devices"]} == found["after"]
    assert found["kind"] == "crashed"
    assert found["message"].startswith("no CUDA device for this rank: torch ")
    assert any(found["message"].endswith(f"wanted GPU {uuid}") for uuid in found["devices"])


def test_a_ray_without_gpus_is_told_how_to_start(gang_on):
    found = gang_on(*two_nodes(), ray_gpus=0)

    assert found["refused"].startswith("Ray has 0 GPUs of ")
    assert "ray start --num-gpus=2" in found["refused"]


SPEC = """
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 4
head_dim = 16
ffn = 128
vocab = 64
[workload]
seq_len = 128
global_batch_seqs = 2
precision = "bf16"
[axes]
tp = [1]
cp = [2]
pp = [1]
micro_batch = [1]
[budget]
trials = 1
trace = "off"
"""


@pytest.mark.timeout(240)
def test_a_sweep_goes_to_the_gpus_of_this_node_and_says_that_torch_finds_none(
    nvml_library, tmp_path
):
    answers, spec = tmp_path / "answers.txt", tmp_path / "two.toml"
    answers.write_text(nv.render(nv.machine(2, name="NVIDIA H100 80GB HBM3", capability="9.0")))
    spec.write_text(SPEC)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(nvml_library["new"]),
        "NVML_STUB_ANSWERS": str(answers),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "cptune", "sweep", spec, "--runs", tmp_path / "runs"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=220)

    assert done.returncode == 1, done.stderr
    resolved = (tmp_path / "runs" / "two" / "spec.toml").read_text()
    assert 'gpu = "H100-SXM-80GB"' in resolved
    assert "world_size = 2" in resolved
    (trial,) = ParquetLedger(tmp_path / "runs" / "two", writable=False).read()
    assert trial.kind is OutcomeKind.CRASHED
    assert trial.outcome.message.startswith("no CUDA device for this rank: torch ")
    placed = [place.device for place in trial.placement.ranks]
    assert [(one.kind, one.uuid) for one in placed] == [
        ("cuda", "GPU-00000000"),
        ("cuda", "GPU-00000001"),
    ]
