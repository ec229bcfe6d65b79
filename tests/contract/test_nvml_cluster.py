"""One inventory of several Ray nodes, over the real pynvml: a GPU counts once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nvml_scenarios as nv
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def with_own_gpus(answers, *, node, driver):
    """The same machine with other UUIDs and another driver."""
    uuids = {call: f"{answer}-{node}" for call, answer in answers.items() if "UUID" in call}
    return answers | uuids | {"nvmlSystemGetDriverVersion": driver}


@pytest.fixture
def cluster(nvml_library, tmp_path):
    """The inventory of a Ray whose nodes answer like these machines."""

    def run(*machines):
        files = [tmp_path / f"answers{number}.txt" for number in range(len(machines))]
        for file, answers in zip(files, machines, strict=True):
            file.write_text(nv.render(answers))
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{HERE}"}
        command = [sys.executable, "-m", "raylets", nvml_library["new"], *files]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_two_nodes_that_report_one_gpu_are_refused_by_name(cluster):
    machine = nv.h100_hgx()

    refused = cluster(machine, machine)["refused"]

    assert "saw it as GPU 0 of " in refused
    assert "#0 and as GPU 0 of " in refused
    assert "#1, wanted each GPU on one node" in refused


def test_nodes_with_gpus_of_their_own_are_one_cluster_and_drivers_that_differ_are_noted(cluster):
    machine = nv.h100_hgx()
    drivers = ("550.1", "550.1", "535.9")

    found = cluster(
        *(with_own_gpus(machine, node=node, driver=driver) for node, driver in enumerate(drivers))
    )

    uuids = [gpu["uuid"] for node in found["nodes"] for gpu in node["gpus"]]
    assert len(set(uuids)) == len(uuids) == 24
    (note,) = found["network"]["notes"]
    assert note.startswith("driver versions differ: 550.1 on ")
    assert "; 535.9 on " in note
