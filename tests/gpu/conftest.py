"""The device of a run, the reason where there is none, and what is kept of the run.

On a machine with torch, numpy, pyarrow, nvidia-ml-py and pytest alone, from the project's root:

    PYTHONPATH=. python3 -m pytest -c /dev/null --rootdir=. tests/gpu -ra --record tests/gpu/results

The product's own pytest options want plugins that such a machine does not have.
"""

import os
from pathlib import Path

import pytest
import torch
from gpu_record import GpuRecord

from cptune.attention.kernels import KERNELS


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu")
    group.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses")
    group.addoption("--record", metavar="DIR", default=os.environ.get("OUT"), help="keeps the run")


def device_type(config: pytest.Config) -> str:
    # Of a run that names another folder the options are not known.
    return config.getoption("--device", default="cuda")


def pytest_configure(config: pytest.Config) -> None:
    # The markers that the project's options name, for a run without them.
    config.addinivalue_line("markers", "gpu: needs one CUDA device")
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout, where it is there")
    if folder := config.getoption("--record", default=os.environ.get("OUT")):
        record = GpuRecord(Path(folder), device_type=device_type(config))
        config.pluginmanager.register(record, "gpu_record")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kernel that is made for the device; those that cannot run there skip and say why."""
    if "kernel" in metafunc.fixturenames:
        kind = device_type(metafunc.config)
        made = [one for one in KERNELS if kind in one.capability.device_types]
        metafunc.parametrize("kernel", made, ids=[one.name for one in made])


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> torch.device:
    """The first CUDA device; with --device cpu, the host in its place."""
    if device_type(request.config) == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    return torch.device("cuda", 0)


@pytest.fixture(
    scope="session", params=["cpu", "ticket", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def kind(request: pytest.FixtureRequest) -> str:
    """The device under test: CPU processes keep the tests themselves honest without a GPU.

    `ticket` is one that is told, watched and timed as a GPU is.
    """
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return request.param
