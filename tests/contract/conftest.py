"""The NVML stub, compiled once, and discovery run on top of it in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nvml_scenarios as nv
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """Folders that hold a libnvidia-ml.so.1, by the driver's age."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVML stub with")
    folders = {}
    for age, flags in {"new": [], "old": ["-DOLD_DRIVER"]}.items():
        folders[age] = tmp_path_factory.mktemp(f"nvml_{age}")
        out = folders[age] / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", *flags]
        subprocess.run([*command, "-o", out, HERE / "nvml_stub.c"], check=True)
    return folders


@pytest.fixture
def discover(nvml_library, tmp_path):
    """Runs discovery in a process of its own, on a machine made of answers; gives its JSON."""

    def run(answers, *, age="new", sysfs=None):
        file = tmp_path / "answers.txt"
        file.write_text(nv.render(answers))
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(nvml_library[age]),
            "NVML_STUB_ANSWERS": str(file),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-W", "error", "-c", nv.SCRIPT, str(sysfs or tmp_path / "sys")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
