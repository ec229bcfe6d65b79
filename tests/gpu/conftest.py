"""Where a test asks for the GPU, the reason why there is none."""

import pytest
import torch


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    return torch.device("cuda", 0)
