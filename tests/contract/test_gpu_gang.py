"""Actors hold the GPUs that their ranks were placed on, up to where a rank asks for CUDA."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nvml_scenarios as nv
import pytest
from test_nvml_cluster import with_own_gpus

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
