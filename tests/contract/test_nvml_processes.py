"""Who holds memory of a GPU, over the real pynvml and the NVML ABI."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nvml_scenarios as nv
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from topology.nvml import read_processes, read_uuids
found = read_processes(sys.argv[1])
rows = None if found is None else [(one.pid, one.used_bytes) for one in found]
print(json.dumps({"processes": rows, "uuids": read_uuids()}))
"""


@pytest.fixture
def ask(nvml_library, tmp_path):
    def run(answers, uuid, *, library=None):
        file = tmp_path / "answers.txt"
        file.write_text(nv.render(answers))
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(library or nvml_library["new"]),
            "NVML_STUB_ANSWERS": str(file),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-W", "error", "-c", SCRIPT, uuid]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_processes_of_the_gpu_that_is_asked_for(ask):
    machine = nv.bridged_pair() | {
        "nvmlDeviceGetComputeRunningProcesses 0": "7:100",
        "nvmlDeviceGetComputeRunningProcesses 1": "11:5368709120 12:?",
    }

    found = ask(machine, "GPU-00000001")

    assert found["processes"] == [[11, 5 << 30], [12, None]]
    assert found["uuids"] == {"0": "GPU-00000000", "1": "GPU-00000001"}


@pytest.mark.parametrize(
    ("answer", "seen"), [("", []), (nv.NOT_SUPPORTED, None), (nv.GPU_IS_LOST, None)]
)
def test_nobody_is_not_the_same_as_not_told(ask, answer, seen):
    machine = nv.bridged_pair() | {"nvmlDeviceGetComputeRunningProcesses": answer}

    assert ask(machine, "GPU-00000000")["processes"] == seen


def test_a_gpu_that_the_driver_does_not_know_tells_nothing(ask, tmp_path):
    assert ask(nv.bridged_pair(), "GPU-else")["processes"] is None
    assert ask({}, "GPU-00000000", library=tmp_path) == {"processes": None, "uuids": {}}
