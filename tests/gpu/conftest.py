"""Where a test asks for the GPU, the reason why there is none.

On a machine with torch, numpy, pyarrow, nvidia-ml-py and pytest alone, from the project's root:

    PYTHONPATH=. python -m pytest -c /dev/null --rootdir=. tests/gpu -q -ra

The product's own pytest options want plugins that such a machine does not have.
"""

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """The markers that the project's options name, for a run without them."""
    config.addinivalue_line("markers", "gpu: needs one CUDA device")
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout, where it is there")


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first CUDA device."""
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
